"""`python -m paddlebox.compat` prints the tables of docs/upstream_names.md."""

from paddlebox.compat.names import markdown

print(markdown(), end="")
