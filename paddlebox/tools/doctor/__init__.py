"""What a machine is, what will not work or be slow on it, and why (docs/doctor.md)."""
