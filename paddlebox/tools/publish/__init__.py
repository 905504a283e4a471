"""Sinks: the places to which a run publishes its saves (docs/publish.md)."""
