"""docs/dataset.md says truly of every name of PaddleBox's datasets what it is here."""

from __future__ import annotations

import re
from pathlib import Path

import paddlebox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dataset.md"
CLASSES = ("InMemoryDataset", "BoxPSDataset", "PadBoxSlotDataset", "QueueDataset")


def rows() -> list[tuple[list[str], str]]:
    """Names of each row of the table, and what the page says of them."""
    table = PAGE.read_text().partition("## Every name")[2]
    found = [line.replace("\\|", "").split("|")[1:3] for line in table.splitlines() if "`" in line]
    return [(re.findall(r"`(\w+)", names), what.strip()) for names, what in found if what]


def is_here(name: str) -> bool:
    return hasattr(paddlebox, name) or any(hasattr(getattr(paddlebox, c), name) for c in CLASSES)


def test_a_name_is_here_unless_it_is_left_out() -> None:
    for names, what in rows():
        for name in names:
            assert is_here(name) != what.startswith("left out"), f"{name}: {what}"


def test_every_name_that_the_classes_have_is_on_the_page() -> None:
    told = {name for names, _ in rows() for name in names}
    own = {"batches", "label_variable", "set_window_files", "slot_names"}  # not of PaddleBox
    for class_name in CLASSES:
        public = {name for name in dir(getattr(paddlebox, class_name)) if not name.startswith("_")}
        assert public - told - own == set(), class_name
