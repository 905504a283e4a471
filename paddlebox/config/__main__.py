"""`python -m paddlebox.config` prints the reference table; `docs/config.md` holds it."""

from paddlebox.config.describe import markdown

print(markdown(), end="")
