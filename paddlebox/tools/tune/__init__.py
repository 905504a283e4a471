"""Chooses values of a config by successive halving (docs/tune.md)."""
