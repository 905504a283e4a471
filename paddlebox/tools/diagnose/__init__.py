"""Analyses a trained model on files, slot by slot (docs/report.md)."""
