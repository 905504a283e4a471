"""Base and delta saves for serving (docs/formats/save.md)."""

from __future__ import annotations

from paddlebox.saves.load import load_save
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.saver import Saver

__all__ = ["Save", "Saver", "chain_of", "load_save", "open_save"]
