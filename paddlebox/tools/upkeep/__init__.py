"""Tools for a store: show its content, verify it, and repair it (`paddlebox store`)."""
