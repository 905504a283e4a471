"""Warm start: a new run begins with the rows and dense parameters of another run."""
