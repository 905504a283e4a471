"""What rows without an embedx leave out comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest

from paddlebox.config.trainer import Wire
from paddlebox.errors import RankError
from paddlebox.ranks.row_messages import BareMessages, RowFormat, with_bits, without_bits

THIN = 3  # columns of a row without embedx
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
    columns = THIN + counts
    form = RowFormat(wire, columns + 8)
    bare = np.random.default_rng(1).random(sum(_COUNTS)) < share
    rows = _rows(form.columns, bare, columns)
    messages = BareMessages(form, columns, bare, _COUNTS)
    out = messages.pack(form.pack(rows[~bare]), rows[bare, :columns])
    assert [m.nbytes for m in messages.room()] == [m.nbytes for m in out]
    whole = int(np.count_nonzero(~bare))
    thin_bytes = (len(bare) - whole) * 4 * columns
    assert sum(m.nbytes for m in out) == whole * form.record_bytes + thin_bytes
    found = messages.unpack(out)
    np.testing.assert_array_equal(found[bare], rows[bare])
    np.testing.assert_array_equal(found[~bare], form.unpack(form.pack(rows[~bare])))


def test_one_bit_per_row_before_the_rows_marks_those_without_embedx() -> None:
    bare = np.random.default_rng(3).random(sum(_COUNTS)) < 0.5
    without = BareMessages(RowFormat(Wire.FLOAT32, 11), THIN, bare, _COUNTS)
    rows = [np.full(n, 7, np.uint8) for n in without.sizes]
    messages = with_bits(bare, _COUNTS, rows)
    assert [m.nbytes - r.nbytes for m, r in zip(messages, rows, strict=True)] == [1, 0, 2, 1]
    found, left = without_bits(messages, _COUNTS)
    np.testing.assert_array_equal(found, bare)
    for message, row in zip(left, rows, strict=True):
        np.testing.assert_array_equal(message, row)
    without.unpack(left)
    expected = without.sizes[2]
    with pytest.raises(RankError, match=f"rank 2 sends 3 bytes of rows, expected {expected}"):
        without.unpack([*left[:2], left[2][:3], left[3]])
