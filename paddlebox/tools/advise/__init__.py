"""What a config will do on this machine, before it is trained (docs/advise.md)."""
