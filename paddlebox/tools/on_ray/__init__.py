"""Runs the ranks of a job on a Ray cluster (docs/ray.md)."""
