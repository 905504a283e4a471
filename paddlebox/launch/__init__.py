"""Starting a run: settings of the process before Paddle is imported."""
