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
        (GOOD + "  - {name: user, type: sparse}", "expected each name once, found user twice"),
        ("slots: []", "expected a slot of type label, found none"),
        (
            GOOD + "  - {name: x, type: spase}",
            "slots[4].type of 'x': expected 'label', 'dense', 'sparse', 'weight', 'count' or "
            "'late'",
        ),
        (
            GOOD + "  - {name: x, typ: sparse}",
            "slots[4].typ of 'x': unknown key; did you mean slots[4].type?",
        ),
        (GOOD + "  - {name: 1, type: sparse}", "slots[4].name: expected a string, found 1 (int)"),
        (
            GOOD + "  - {name: x, type: sparse, dim: 2}",
            "has dim, which is for dense slots",
        ),
        (GOOD + "  - {name: x, type: dense, shares: user}", "'x' has shares, which is for sparse"),
        (
            GOOD + "  - {name: x, type: sparse, shares: usr}",
            "'x': shares: expected a sparse slot that is read, found 'usr'; did you mean 'user'?",
        ),
        (GOOD + "  - {name: x, type: sparse, shares: x}", "a sparse slot that is read, found 'x'"),
        (GOOD + "  - {name: x, type: sparse, shares: age}", "that is read, found 'age'"),
        (
            GOOD + "  - {name: x, type: sparse, shares: user}\n"
            "  - {name: y, type: sparse, shares: x}",
            "'y': shares: 'x' itself shares 'user'; expected a slot without shares: give 'y' "
            "`shares: user`",
        ),
        (
            GOOD + "  - {name: x, type: sparse, hash: true, shares: user}",
            "only one of 'x' and 'user' has `hash: true`",
        ),
        (
            GOOD + "  - {name: x, type: sparse, table: wide, shares: user}",
            "'x' belongs to table 'wide' and 'user' to 'default'; expected the same table",
        ),
        (
            GOOD + "  - {name: x, type: sparse, bucket: {of: height, boundaries: [1]}, "
            "shares: user}",
            "'x' is made of other slots; expected no hash, column, shares or weighted",
        ),
        (
            GOOD + "  - {name: z, type: sparse, shares: x}\n"
            "  - {name: x, type: sparse, bucket: {of: height, boundaries: [1]}}",
            "'z': shares: expected a sparse slot that is read, found 'x'; there are: user",
        ),
        (GOOD + "  - {name: x, type: dense, dim: 0}", "slots[4].dim of 'x': expected at least 1"),
        (GOOD + "  - {name: 'a:b', type: sparse}", "expected no space and no colon, found 'a:b'"),
        (GOOD + "  - {name: x, type: sparse, hsh: true}", "did you mean slots[4].hash?"),
        (GOOD + "  - {name: x, type: dense, hash: true}", "'x' has hash, which is for sparse"),
        (GOOD + "  - {name: x, type: sparse, log1p: true}", "'x' has log1p, which is for dense"),
        (GOOD + "  - {name: x, type: dense, clip: [3, 1]}", "'x': clip: expected [low, high]"),
        (GOOD + "  - {name: x, type: sparse, max_length: 0}", "slots[4].max_length of 'x'"),
        (GOOD + "  - {name: x, type: sparse, default: 0}", "expected a feasign in [1, 2^64 - 1]"),
        (
            GOOD + "  - {name: x, type: sparse, default: 18446744073709551616}",
            "(a slot of strings needs hash: true), found 18446744073709551616",
        ),
        (
            GOOD + "  - {name: x, type: sparse, hash: true, default: 7}",
            "default: expected a string, because of hash, found 7",
        ),
        (GOOD + "  - {name: x, type: dense, default: a}", "default: expected a number, found 'a'"),
        (
            GOOD + "  - {name: x, type: sparse, bucket: {of: heigth, boundaries: [1]}}",
            "slot 'x': bucket.of: expected a dense slot of dim 1 above it, found "
            "'heigth'; did you mean 'height'?",
        ),
        (
            GOOD + "  - {name: x, type: sparse, bucket: {of: age, boundaries: [1]}}",
            "found 'age'; there are: height",
        ),
        (
            GOOD + "  - {name: x, type: sparse, bucket: {of: height, boundary: [1]}}",
            "slots[4].bucket.boundary of 'x': unknown key; did you mean slots[4].bucket.",
        ),
        (
            GOOD + "  - {name: x, type: sparse, bucket: {of: height, boundaries: [2, 2]}}",
            "slot 'x': bucket.boundaries: expected ascending numbers",
        ),
        (
            GOOD + "  - {name: x, type: sparse, bucket: {of: height, boundaries: []}}",
            "slot 'x': bucket.boundaries: expected at least one, found none",
        ),
        (
            GOOD + "  - {name: x, type: sparse, cross: [user]}",
            "slot 'x': cross: expected two slots, found 1",
        ),
        (
            GOOD + "  - {name: x, type: sparse, cross: [user, usr]}",
            "slot 'x': cross: expected a sparse slot above it, found 'usr'; did you mean 'user'?",
        ),
        (
            GOOD + "  - {name: x, type: sparse, cross: [user, user]}\n  - {name: y, type: sparse}",
            "slot 'y' is read from a column, but follows 'x', which is made",
        ),
        ("csv: {delimiter: ab}" + GOOD, "csv: delimiter: expected one character"),
        ("csv: {delimiter: '|'}" + GOOD, "found '|' as delimiter and as list_separator"),
        ("csv: {delimeter: '|'}" + GOOD, "did you mean csv.delimiter?"),
        ("- {name: x}", "expected a mapping"),
        ("slot: []", "slot: unknown key; did you mean slots?"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)


def test_data_of_floats_alone_has_an_intercept(tmp_path: Path) -> None:
    """Also after it was stored, and where no dense slot has dim 1."""
    text = "csv: {delimiter: ';'}\nslots:\n  - {name: click, type: label}\n"
    text += "  - {name: _intercept, type: dense, dim: 3}\n"
    slots = load(tmp_path, text)
    assert [slot.name for slot in slots.slots] == ["click", "_intercept", "__intercept"]
    assert [slot.made for slot in slots.sparse] == [True]
    assert slots.csv.delimiter == ";"
    assert Slots.model_validate(slots.model_dump(mode="json"), strict=False) == slots
    assert "_intercept" not in [slot.name for slot in load(tmp_path, GOOD).slots]
    with pytest.raises(ConfigError, match="expected one of type sparse or dense, found only"):
        load(tmp_path, "slots:\n  - {name: click, type: label}\n")


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
    with pytest.raises(ConfigError, match=r"found data\.format multislot"):
        slots.check_format(Format.MULTISLOT)


COLUMN_FORMATS = {Format.CSV, Format.JSON, Format.PARQUET, Format.ARROW, Format.ORC}


@pytest.mark.parametrize("data_format", Format)
def test_what_a_format_does_not_have_is_refused(tmp_path: Path, data_format: Format) -> None:
    named = GOOD.replace("{name: user,", "{name: user, column: u,")
    defaulted = GOOD.replace("dim: 2", "dim: 2, default: 0.5")
    csv = "csv: {delimiter: ;}" + GOOD
    allowed = {
        named: COLUMN_FORMATS,
        defaulted: COLUMN_FORMATS | {Format.FEASIGN_SLOT, Format.SLOT_VALUE},
        csv: {Format.CSV},
    }
    for text, formats in allowed.items():
        slots = load(tmp_path, text)
        if data_format in formats:
            slots.check_format(data_format)
        else:
            with pytest.raises(ConfigError):
                slots.check_format(data_format)


def test_tokens_of_criteo_are_not_hashed(tmp_path: Path) -> None:
    slots = criteo(tmp_path, "name: C1, type: sparse, hash: true")
    with pytest.raises(ConfigError, match="'C1' has hash; the tokens of criteo_tsv are numbers"):
        slots.check_format(Format.CRITEO_TSV)
