"""Converts a config of PaddleRec, and describes its data, for this project.

`source` reads the config, `data` examines the files, `keys` converts each key, `reader` runs an
unchanged reader of PaddleRec, and `cli` is the command line.
"""
