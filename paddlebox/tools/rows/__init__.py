"""Rows as files: `paddlebox store export` and `paddlebox store import` (docs/rows.md)."""
