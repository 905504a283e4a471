"""What tells whoever is on call how a run does (docs/runbook.md)."""
