"""The files that a model of your own starts from (docs/new_model.md)."""
