"""Restarts a job of ranks from its last commit (docs/ranks.md)."""
