"""The store: its manifest of committed versions, and the tables on top of it."""
