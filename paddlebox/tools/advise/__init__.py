"""Predicts how a config will perform on this machine, before it is trained (docs/advise.md)."""
