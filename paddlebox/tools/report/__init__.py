"""Pages to look at: one run (tools/report.py), several beside each other (tools/compare.py)."""
