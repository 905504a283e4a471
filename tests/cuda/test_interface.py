"""What the tests take the library for is what its header says."""

from __future__ import annotations

from ctypes import c_char_p, c_int, c_int32, c_uint64, c_void_p

import pytest
from hbm_library import HEADER, STRUCTURES, functions, structures


def test_structures_have_the_fields_of_the_header_in_their_order():
    declared = structures()
    assert declared.keys() == STRUCTURES.keys()
    for name, fields in declared.items():
        assert list(STRUCTURES[name]._fields_) == fields, name


def test_every_function_of_the_header_is_in_the_library_and_called_as_declared(library):
    found = functions()
    lines = HEADER.read_text().splitlines()
    assert len(found) == sum(line.startswith("PBX_HBM_API") for line in lines)
    assert found["error"] == (c_char_p, [])
    assert found["plan_room"] == (c_uint64, [c_uint64])
    assert found["round"] == (c_int, [c_void_p, c_int32, c_uint64])
    # One that the library lacks would have been an error when it was opened.
    with pytest.raises(AssertionError, match="plan_room"):
        library.get("plan_room", 1, 2)
