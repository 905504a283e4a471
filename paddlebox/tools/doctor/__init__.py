"""Examines a machine: what will not work or be slow on it, and why (docs/doctor.md)."""
