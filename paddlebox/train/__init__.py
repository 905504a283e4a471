"""Training: the pass loop over programs and layers."""
