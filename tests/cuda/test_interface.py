"""What the tests take the library for is what its header says."""

from __future__ import annotations

from ctypes import c_char_p, c_int, c_int32, c_uint64, c_void_p
from pathlib import Path

import pytest

from tests.cuda.hbm_library import HEADER, STRUCTURES, Library, architecture, functions, structures


def test_structures_have_the_fields_of_the_header_in_their_order() -> None:
    declared = structures()
    assert declared.keys() == STRUCTURES.keys()
    for name, fields in declared.items():
        assert list(STRUCTURES[name]._fields_) == fields, name


def test_every_function_of_the_header_is_in_the_library_and_called_as_declared(
    library: Library,
) -> None:
    found = functions()
    lines = HEADER.read_text().splitlines()
    assert len(found) == sum(line.startswith("PBX_HBM_API") for line in lines)
    assert found["error"] == (c_char_p, [])
    assert found["plan_room"] == (c_uint64, [c_uint64])
    assert found["round"] == (c_int, [c_void_p, c_int32, c_uint64])
    # One that the library lacks would have been an error when it was opened.
    with pytest.raises(AssertionError, match="plan_room"):
        library.get("plan_room", 1, 2)


@pytest.mark.parametrize(
    ("says", "expected"),
    [("9.0\n9.0\n", ["ARCH=90"]), ("8.0\n9.0\n", ["ARCH=80 90"]), ("", []), ("[N/A]\n", [])],
)
def test_the_library_is_compiled_for_the_gpus_that_the_driver_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, expected: list[str]
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nprintf '{says.encode('unicode_escape').decode()}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ARCH", raising=False)
    assert architecture("gpu") == expected
    assert architecture("host") == []
    monkeypatch.setenv("ARCH", "75")  # make takes it from the environment
    assert architecture("gpu") == []
