"""Chooses values of a config by successive halving, with Optuna (docs/tune.md)."""
