"""slots.yaml: one label, no name twice, and only what its format can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlebox.config import Format, Slots, SlotType, load_slots
from paddlebox.errors import ConfigError

GOOD = """
slots:
  - {name: click, type: label}
  - {name: age, type: dense, dim: 2}
  - {name: user, type: sparse}
  - {name: height, type: dense}
"""


def load(folder: Path, text: str) -> Slots:
    path = folder / "slots.yaml"
    path.write_text(text)
    return load_slots(path)


def test_slots_keep_their_order_and_kinds(tmp_path: Path) -> None:
    slots = load(tmp_path, GOOD)
    assert [slot.name for slot in slots.slots] == ["click", "age", "user", "height"]
    assert slots.label.name == "click"
    assert [slot.name for slot in slots.dense] == ["age", "height"]
    assert slots.dense_width == 3
    assert [slot.type for slot in slots.sparse] == [SlotType.SPARSE]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "  - {name: user, type: sparse}", "given twice: user"),
        (GOOD + "  - {name: buy, type: label}", "exactly one slot of type label, found click, buy"),
        ("slots: []", "exactly one slot of type label, found none"),
        (
            GOOD + "  - {name: x, type: spase}",
            "slots[4].type: expected 'label', 'dense' or 'sparse'",
        ),
        (
            GOOD + "  - {name: x, typ: sparse}",
            "slots[4].typ: unknown key; did you mean slots[4].type?",
        ),
        (GOOD + "  - {name: 1, type: sparse}", "slots[4].name: expected a string, found 1 (int)"),
        (
            GOOD + "  - {name: x, type: sparse, dim: 2}",
            "has a dim, which only a dense slot may have",
        ),
        (GOOD + "  - {name: x, type: dense, dim: 0}", "slots[4].dim: Input should be greater"),
        (GOOD + "  - {name: 'a:b', type: sparse}", "holds a space or a colon"),
        ("- {name: x}", "expected a mapping"),
        ("slot: []", "slot: unknown key; did you mean slots?"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)


def criteo(folder: Path, slot: str) -> Slots:
    return load(folder, f"slots:\n  - {{name: label, type: label}}\n  - {{{slot}}}\n")


@pytest.mark.parametrize(
    "slot",
    [
        "name: I1, type: dense",
        "name: I13, type: sparse",
        "name: C26, type: sparse",
        "name: x, type: sparse, column: I7",
    ],
)
def test_criteo_columns_are_named_by_column_or_name(tmp_path: Path, slot: str) -> None:
    criteo(tmp_path, slot).check_format(Format.CRITEO_TSV)


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        ("name: I14, type: dense", "no column 'I14'"),
        ("name: C0, type: sparse", "no column 'C0'"),
        ("name: C1, type: dense", "column C1 cannot be a dense slot"),
        ("name: I1, type: dense, dim: 2", "cannot be a dense slot of dim 2"),
        ("name: x, type: sparse, column: label", "column label cannot be a sparse slot"),
    ],
)
def test_a_column_that_criteo_lacks_is_refused(tmp_path: Path, slot: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        criteo(tmp_path, slot).check_format(Format.CRITEO_TSV)


def test_a_column_is_refused_where_no_format_reads_it(tmp_path: Path) -> None:
    slots = criteo(tmp_path, "name: x, type: sparse, column: C1")
    with pytest.raises(ConfigError, match=r"data\.format is multislot"):
        slots.check_format(Format.MULTISLOT)
