"""HTML pages of one run (tools/report.py), or of several runs side by side (tools/compare.py)."""
