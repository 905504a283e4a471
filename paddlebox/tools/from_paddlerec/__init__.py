"""Converts a config of PaddleRec, and describes its data, for this project.

`keys` reads the config and converts each key, `data` examines the files or runs an unchanged reader
of PaddleRec, and `cli` is the command line.
"""
