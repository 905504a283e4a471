"""Begins a network of one's own: python tools/new_model.py my_net"""

import sys

import installed  # noqa: F401

from paddlebox.launch import reader
from paddlebox.tools.new_model.cli import new_model_main

if __name__ == "__main__":
    sys.exit(reader.run(new_model_main))
