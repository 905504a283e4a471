"""`python -m paddlebox.config` prints the reference table of docs/config.md."""

from paddlebox.config.describe import markdown

print(markdown(), end="")
