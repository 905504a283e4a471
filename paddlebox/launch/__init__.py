"""Command lines of the tools, and settings of the process before Paddle is imported."""
