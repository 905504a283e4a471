"""The feeder: files to batches of row ids."""
