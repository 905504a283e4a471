"""Dense files: a byte that is not as it was written is found, and whose it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from paddlebox.errors import CorruptionError
from paddlebox.store.files import crc32c, dense_digest, read_dense, write_dense

_ARRAYS: dict[str, np.ndarray] = {
    "bias": np.array([0.5, -2.0], np.float32),  # 8 bytes at 0
    "empty": np.empty((0, 3), np.float32),  # at 64
    "rate": np.array(0.125, np.float64),  # 8 bytes at 64
    "steps": np.array([7], np.int64),  # 8 bytes at 128
    "weights": np.arange(20, dtype=np.float32).reshape(4, 5),  # 80 bytes at 192
}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, dict[str, int]]]:
    return tmp_path, write_dense(tmp_path, _ARRAYS)


def _message(written: tuple[Path, dict[str, dict[str, int]]]) -> str:
    with pytest.raises(CorruptionError) as error:
        read_dense(*written)
    return str(error.value)


def test_tensors_come_back_as_they_were(written: tuple[Path, dict[str, dict[str, int]]]) -> None:
    found = read_dense(*written)
    assert list(found) == sorted(_ARRAYS)
    for name, array in _ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, np.shape(array))
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable
    assert read_dense(written[0], {}) == {}


def test_a_flipped_byte_is_reported_with_its_file_and_tensor(
    written: tuple[Path, dict[str, dict[str, int]]],
) -> None:
    path = written[0] / "dense.bin"
    whole = path.read_bytes()
    places = {"bias": (0, 8), "rate": (64, 8), "steps": (128, 8), "weights": (192, 80)}
    of_byte = {at: n for n, (first, size) in places.items() for at in range(first, first + size)}
    assert len(whole) == 320
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        message = _message(written)
        assert message.startswith(f"{path}: ")
        if at not in of_byte:
            assert "expected zeros between tensors" in message
            continue
        first, size = places[of_byte[at]]
        was, now = (crc32c(bytes(one[first : first + size])) for one in (whole, damaged))
        assert f"tensor '{of_byte[at]}': expected {size} bytes at offset {first}" in message
        assert f"with CRC32C {was:#010x}, found {size} with {now:#010x}" in message
        assert "restore it from a copy" in message


def test_a_torn_or_too_long_file_is_reported(
    written: tuple[Path, dict[str, dict[str, int]]],
) -> None:
    path = written[0] / "dense.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    assert "tensor 'weights': expected 80 bytes at offset 192" in _message(written)
    path.write_bytes(b"")
    assert "tensor 'bias': expected 8 bytes at offset 0" in _message(written)
    for other in (whole[:-1], whole + b"\0"):
        path.write_bytes(other)
        assert f"{path}: expected 320 bytes, found {len(other)}" in _message(written)


def test_tensors_are_those_that_the_index_names_and_the_index_that_of_the_record(
    written: tuple[Path, dict[str, dict[str, int]]], tmp_path: Path
) -> None:
    folder, files = written
    other = tmp_path / "other"
    later = write_dense(other, {n: np.asarray(a + 1) for n, a in _ARRAYS.items()})
    shutil.copy(other / "dense.bin", folder / "dense.bin")
    assert "dense.bin: tensor 'bias'" in _message(written)
    shutil.copy(other / "dense.json", folder / "dense.json")
    found = later["dense.json"]["crc32c"]
    assert f"dense.json: expected {files['dense.json']['bytes']} bytes" in _message(written)
    assert f"{files['dense.json']['crc32c']:#010x}" in _message(written)
    assert f"{found:#010x}" in _message(written)
    # An index that holds another checksum than that of the bytes, which its record names.
    index = json.loads((other / "dense.json").read_text())
    index["tensors"][0]["crc32c"] ^= 1
    content = json.dumps(index).encode()
    (other / "dense.json").write_bytes(content)
    later["dense.json"] = {"bytes": len(content), "crc32c": crc32c(content)}
    assert "dense.bin: tensor 'bias'" in _message((other, later))


def test_the_digest_is_that_of_every_name_dtype_shape_and_byte_in_order_of_name() -> None:
    weights, bias = np.array([[0.5, -2.0]], np.float32), np.array(7, np.int64)
    content = b"bias <i8 ()\n" + bias.tobytes() + b"weights <f4 (1, 2)\n" + weights.tobytes()
    assert dense_digest({"weights": weights, "bias": bias}) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"weights": np.array([0.5, 2.0], np.float32)},  # a sign
        {"weights": np.array([-0.0, -2.0], np.float32)},
        {"weights": np.array([[0.5, -2.0]], np.float32)},
        {"weights": np.array([0.5, -2.0], np.float32).view(np.int32)},
        {"bias": np.array([0.5, -2.0], np.float32)},
        {"weights": np.array([0.5, -2.0], np.float32), "bias": np.empty(0, np.float32)},
    ],
)
def test_other_tensors_have_another_digest(other: dict[str, np.ndarray]) -> None:
    assert dense_digest(other) != dense_digest({"weights": np.array([0.5, -2.0], np.float32)})


def test_tensors_that_are_not_wanted_are_neither_read_nor_checked(
    written: tuple[Path, dict[str, dict[str, int]]],
) -> None:
    path = written[0] / "dense.bin"
    whole = path.read_bytes()
    path.write_bytes(b"\1" * 8 + whole[8:])
    found = read_dense(*written, lambda name: name == "weights")
    assert list(found) == ["weights"]
    np.testing.assert_array_equal(found["weights"], _ARRAYS["weights"])
    path.write_bytes(whole[:200])
    with pytest.raises(CorruptionError, match="expected 320 bytes, found 200"):
        read_dense(*written, lambda name: name == "bias")
