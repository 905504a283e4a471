"""Writes the files to start a new model from (docs/new_model.md)."""
