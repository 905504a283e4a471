"""Tools for a store: show its content, verify it, and repair it (tools/store.py)."""
