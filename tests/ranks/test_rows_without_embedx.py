"""What rows without an embedx leave out comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest

from paddlebox.config.trainer import Wire
from paddlebox.errors import RankError
from paddlebox.ranks import rows_without_embedx as bare_rows
from paddlebox.ranks.quantize import RowFormat

_COUNTS = [5, 0, 9, 1]  # of each message


def _rows(columns: int, bare: np.ndarray, thin: int) -> np.ndarray:
    rows = np.random.default_rng(2).normal(size=(len(bare), columns)).astype(np.float32)
    rows[bare, thin:] = 0
    return rows


@pytest.mark.parametrize(("wire", "counts"), [*((wire, 0) for wire in Wire), (Wire.FLOAT32, 2)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_row_without_embedx_arrives_bit_for_bit_and_a_whole_one_in_its_format(
    wire: Wire, counts: int, share: float
) -> None:
    columns = bare_rows.THIN + counts
    form = RowFormat(wire, columns + 8)
    bare = np.random.default_rng(1).random(sum(_COUNTS)) < share
    rows = _rows(form.columns, bare, columns)
    out = bare_rows.joined(form.pack(rows[~bare]), rows[bare, :columns], bare, _COUNTS)
    into = bare_rows.room(bare, _COUNTS, form.record_bytes, columns)
    assert [m.nbytes for m in into] == [m.nbytes for m in out]
    bare_rows.check_sizes(out, bare, _COUNTS, form.record_bytes, columns)
    whole = int(np.count_nonzero(~bare))
    thin_bytes = (len(bare) - whole) * 4 * columns
    assert sum(m.nbytes for m in out) == whole * form.record_bytes + thin_bytes
    whole_part, thin = bare_rows.parted(out, bare, _COUNTS, form.record_bytes, columns)
    found = bare_rows.spread(form.unpack(whole_part), thin, bare)
    np.testing.assert_array_equal(found[bare], rows[bare])
    np.testing.assert_array_equal(found[~bare], form.unpack(form.pack(rows[~bare])))


def test_one_bit_per_row_before_the_rows_marks_those_without_embedx() -> None:
    bare = np.random.default_rng(3).random(sum(_COUNTS)) < 0.5
    rows = [np.full(n, 7, np.uint8) for n in bare_rows.sizes_of(bare, _COUNTS, 44)]
    messages = bare_rows.with_bits(bare, _COUNTS, rows)
    assert [m.nbytes - r.nbytes for m, r in zip(messages, rows, strict=True)] == [1, 0, 2, 1]
    found, left = bare_rows.without_bits(messages, _COUNTS)
    np.testing.assert_array_equal(found, bare)
    for message, row in zip(left, rows, strict=True):
        np.testing.assert_array_equal(message, row)
    bare_rows.check_sizes(left, found, _COUNTS, 44)
    expected = bare_rows.sizes_of(bare, _COUNTS, 44)[2]
    with pytest.raises(RankError, match=f"rank 2 sends 3 bytes of rows, expected {expected}"):
        bare_rows.check_sizes([*left[:2], left[2][:3], left[3]], found, _COUNTS, 44)
