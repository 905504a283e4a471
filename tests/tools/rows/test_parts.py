"""The formats of parts, and safetensors: the same values, and one error for anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from paddlebox.errors import DataError
from paddlebox.tools.rows.columns import Columns, columns_of, rows_of, widths_of, words_of
from paddlebox.tools.rows.parts import PartFormat, decode, encode
from paddlebox.tools.rows.safetensors import Tensors, dumps

NAMES = ["user", "item", "tag"]
LAYOUT = {
    "embedx_dim": 3, "embed_state": 1, "embedx_state": 1, "expand_dim": 2, "expand_state": 1,
    "counts": 1,
}  # fmt: skip
WIDTHS = widths_of(LAYOUT, True)


def some_rows(n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1, (n, words_of(LAYOUT))).astype(np.float32)
    rows[0, 6], rows[1, 6], rows[2, 6] = 1e-42, -0.0, 16777217.0  # a denormal, a sign, 2^24 + 1
    words = rows.view(np.uint32)
    words[:, 0] = rng.integers(0, 3, n) | rng.integers(0, 2, n) << 16
    words[:, 4], words[:, 5] = 4_000_000_000, 0
    return rng.integers(1, 2**64, n, dtype=np.uint64), rows


def decoded(
    part_format: PartFormat,
    content: bytes,
    widths: Mapping[str, int] = WIDTHS,
    names: Sequence[str] = NAMES,
) -> Columns:
    """The pieces of a part, joined."""
    pieces = list(decode(part_format, content, widths, names, "part"))
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in widths if pieces}


@pytest.mark.parametrize("part_format", PartFormat)
@pytest.mark.parametrize("rows", [50, pytest.param(140_000, marks=pytest.mark.slow)])
def test_each_format_keeps_every_bit(part_format: PartFormat, rows: int) -> None:
    feasigns, made = some_rows(rows)
    columns = columns_of(feasigns, made, LAYOUT, WIDTHS)
    content = encode(part_format, columns, NAMES)
    back = decoded(part_format, content)
    assert back["feasign"].tobytes() == feasigns.tobytes()
    assert rows_of(back, LAYOUT).tobytes() == made.tobytes()


@pytest.mark.parametrize("part_format", PartFormat)
def test_a_part_of_one_column_and_no_row_is_read_back(part_format: PartFormat) -> None:
    content = encode(part_format, {"feasign": np.empty(0, np.uint64)}, NAMES)
    pieces = decode(part_format, content, {"feasign": 1}, NAMES, "part")
    assert sum(len(piece["feasign"]) for piece in pieces) == 0


@pytest.mark.parametrize("part_format", PartFormat)
def test_a_cut_part_is_one_error_that_names_it(part_format: PartFormat) -> None:
    feasigns, rows = some_rows()
    content = encode(part_format, columns_of(feasigns, rows, LAYOUT, WIDTHS), NAMES)
    for end in (0, 10, len(content) // 2):
        with pytest.raises(DataError, match="part"):
            decoded(part_format, content[:end])


@pytest.mark.parametrize("part_format", PartFormat)
def test_another_width_and_a_missing_column_are_errors(part_format: PartFormat) -> None:
    feasigns, rows = some_rows()
    content = encode(part_format, columns_of(feasigns, rows, LAYOUT, WIDTHS), NAMES)
    for wrong in ({**WIDTHS, "embedx_w": 4}, {**WIDTHS, "nothing": 1}):
        with pytest.raises(DataError, match="part"):
            decoded(part_format, content, wrong)


def test_a_slot_that_is_not_one_of_the_names_is_an_error() -> None:
    feasigns, rows = some_rows()
    columns = columns_of(feasigns, rows, LAYOUT, WIDTHS)
    content = encode(PartFormat.PARQUET, columns, NAMES)
    with pytest.raises(DataError, match="'tag' is not one of user, item"):
        decoded(PartFormat.PARQUET, content, names=NAMES[:2])


def test_safetensors_are_those_of_the_reference() -> None:
    arrays: dict[str, np.ndarray] = {"a": np.array([1, 2]), "b": np.array([3], np.uint8)}
    content = dumps(arrays)
    text = (
        b'{"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},'
        b'"b":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}}'
    )
    assert content[8 : 8 + len(text)] == text  # as in docs/formats/rows.md
    theirs = safetensors.numpy.load(content)
    assert {name: array.tolist() for name, array in theirs.items()} == {"a": [1, 2], "b": [3]}
    ours = Tensors(safetensors.numpy.save(arrays), "file")
    assert ours.read("a").tolist() == [1, 2]
    assert ours.read("a", 1, 2).tolist() == [2]


def test_bfloat16_is_read_as_float32() -> None:
    header = b'{"v":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    words = np.array([0x3FC0, 0xC000], "<u2")  # 1.5 and -2
    content = len(header).to_bytes(8, "little") + header + words.tobytes()
    assert Tensors(content, "file").read("v").tolist() == [1.5, -2.0]


def _with(change: Callable[[dict[str, Any]], object], data: bytes = bytes(16)) -> bytes:
    header: dict[str, Any] = {"a": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


HOSTILE = {
    "no bytes": b"",
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "a header that is not JSON": (2).to_bytes(8, "little") + b"{]",
    "a header that is a list": (2).to_bytes(8, "little") + b"[]",
    "an unknown dtype": _with(lambda h: h["a"].update(dtype="F8")),
    "a size that is not that of the shape": _with(lambda h: h["a"].update(shape=[3])),
    "a negative size": _with(lambda h: h["a"].update(shape=[-1, -2])),
    "offsets beyond the data": _with(lambda h: h["a"].update(data_offsets=[8, 24])),
    "truncated data": _with(lambda _: None, bytes(15)),
    "data that no tensor has": _with(lambda _: None, bytes(17)),
    "overlapping tensors": _with(
        lambda h: h.update(b={"dtype": "I64", "shape": [1], "data_offsets": [8, 16]})
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_safetensors_file_is_one_error(what: str) -> None:
    with pytest.raises(DataError, match="the file"):
        Tensors(HOSTILE[what], "the file")
