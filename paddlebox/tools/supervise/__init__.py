"""Restarts a job of ranks from its last commit (docs/deploy.md)."""
