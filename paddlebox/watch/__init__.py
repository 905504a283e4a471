"""Alerts, status file and metrics page of a run (docs/runbook.md)."""
