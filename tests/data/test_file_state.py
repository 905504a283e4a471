"""A file that was rewritten is told from one that was copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddlebox.data.sources import FileState, changed, state_of, states_of


@pytest.mark.parametrize("size", [0, 1, 4096, 32_768, 32_769, 1_000_003])
def test_the_first_and_the_last_byte_and_the_size_are_of_the_state(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(size))
    state = state_of(str(path))
    assert state is not None
    assert state.bytes == size
    for at in (0, size - 1) if size else ():
        path.write_bytes(bytes(at) + b"x" + bytes(size - at - 1))
        assert changed({str(path): state}) == {str(path): state_of(str(path))}
    path.write_bytes(bytes(size) + b"x")
    assert changed({str(path): state})
    path.write_bytes(bytes(size))
    os.utime(path, (1, 1))
    assert not changed({str(path): state})


def test_every_byte_of_a_small_file_is_of_the_state(tmp_path: Path) -> None:
    path, size = tmp_path / "a", 8 * 4096
    path.write_bytes(bytes(size))
    before = states_of([str(path)])
    for at in range(0, size, 1000):
        path.write_bytes(bytes(at) + b"x" + bytes(size - at - 1))
        assert changed(before), at


def test_remote_and_missing_files_have_no_state(tmp_path: Path) -> None:
    assert states_of([str(tmp_path / "none"), "s3://bucket/part"]) == {}
    assert changed({str(tmp_path / "none"): FileState(1, "a")}) == {}
