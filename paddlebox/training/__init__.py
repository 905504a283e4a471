"""Training: opens, resumes and evaluates runs, and trains their passes."""
