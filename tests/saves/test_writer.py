"""Writing a save: its segments, and what a writer that died has left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddlebox import _native
from paddlebox.saves import writer
from paddlebox.saves.meta import DELETED, META, ROWS
from paddlebox.saves.writer import PartWriter, SaveWriter, Shape

SHAPE = Shape("default", 2, 7)


def rows_of(keys: np.ndarray) -> np.ndarray:
    return np.stack([keys, keys + 0.5], axis=1).astype(np.float32)


@pytest.mark.parametrize(("rank", "first_id"), [(0, 1), (2, 2_000_001)])
def test_chunks_of_any_size_become_full_segments_in_the_order_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, first_id: int
) -> None:
    monkeypatch.setattr(writer, "_SEGMENT_BYTES", 64)  # 4 rows of 8 bytes with their keys
    part = PartWriter(tmp_path, SHAPE, rank)
    keys = np.arange(1, 15, dtype=np.uint64)
    for chunk in np.split(keys, [3, 9, 9, 10]):
        part.add(chunk, rows_of(chunk))
    part.delete(keys + np.uint64(100))
    about = part.flush()
    assert (about["rows"], about["deleted"]) == (14, 14)
    assert [s["rows"] for s in about["segments"]] == [4, 4, 4, 2]
    assert [s["id"] for s in about["segments"]] == [*range(first_id, first_id + 4)]
    read = [
        _native.core.SegmentFile(str(tmp_path / ROWS / s["file"]), s).rows(0, 1)
        for s in about["segments"]
    ]
    assert np.concatenate([k for k, _ in read]).tolist() == keys.tolist()
    values = np.concatenate([rows.view(np.float32) for _, rows in read])
    assert values.tolist() == rows_of(keys).tolist()
    assert sum(s["rows"] for s in about["deletions"]) == 14
    assert all((tmp_path / DELETED / s["file"]).is_file() for s in about["deletions"])


def test_a_save_has_nothing_of_a_writer_that_died(tmp_path: Path) -> None:
    left = tmp_path / "1" / ".base.tmp" / "left"
    left.parent.mkdir(parents=True)
    left.write_text("of a writer that died")
    with SaveWriter(tmp_path / "1" / "base", [SHAPE]) as begun:
        made = begun.finish({}, [{}], {}, {"note": b"a"})
    assert {META, "note"} <= {path.name for path in made.iterdir()}
    assert not (made / "left").exists()
    assert not left.parent.exists()
    with (
        pytest.raises(KeyError),
        SaveWriter(tmp_path / "2" / "base", [SHAPE]) as begun,
    ):
        raise KeyError
    assert [*(tmp_path / "2").iterdir()] == []
