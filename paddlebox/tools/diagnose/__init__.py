"""What a trained model makes of some files, slot by slot (docs/report.md)."""
