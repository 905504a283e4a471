"""What programs and notebooks call: `train` and `open_run` return a `Run` (docs/api.md)."""
