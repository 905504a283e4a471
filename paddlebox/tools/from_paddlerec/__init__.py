"""A config of PaddleRec and its data, as a config and slots of this project.

`source` reads the config, `data` looks at the files, `keys` says what becomes of each key,
`reader` runs a reader of PaddleRec as it is, and `cli` is the command line.
"""
