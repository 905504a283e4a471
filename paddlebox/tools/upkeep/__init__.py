"""Looking after a store: what it holds, whether it is sound, and mending what is not."""
