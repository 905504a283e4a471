"""A slot's values as feasigns: what the feeder makes of them, with nothing else of the line."""

from __future__ import annotations

from typing import Any

import pytest

from paddlebox.config.slots import Slots
from paddlebox.errors import ConfigError
from paddlebox.store.record import VersionRecord
from paddlebox.tools.upkeep.report import feasigns_of

SLOTS = [
    {"name": "click", "type": "label"},
    {"name": "size", "type": "dense", "dim": 2},
    {"name": "age", "type": "dense"},
    {"name": "country", "type": "sparse", "hash": True, "default": "none"},
    {"name": "user", "type": "sparse"},
    {"name": "word", "type": "sparse", "hash": True, "column": "title"},
    {"name": "range", "type": "sparse", "bucket": {"of": "age", "boundaries": [18]}},
]


def record(key_space: str = "shared", data_format: str = "csv", slots: Any = None) -> VersionRecord:
    listed = Slots.model_validate({"slots": slots or SLOTS}, strict=False)
    data = {"format": data_format, "key_space": key_space}
    described = {"config": {"data": data}, "slots": listed.model_dump(mode="json")}
    return VersionRecord(1, 0, [], {}, 1, config=described)


@pytest.mark.parametrize("data_format", ["csv", "multislot", "parquet"])
def test_numbers_are_themselves_and_strings_their_hash(data_format: str) -> None:
    made = record(data_format=data_format)
    assert feasigns_of(made, "user", ["17", str(2**64 - 1)]) == [17, 2**64 - 1]
    assert feasigns_of(made, "word", ["ab"]) == [144753322831965956]  # docs/data.md has it


def test_with_key_space_per_slot_a_value_is_another_feasign_in_each_slot() -> None:
    made = record("per_slot")
    country, word = (feasigns_of(made, slot, ["ab"]) for slot in ("country", "word"))
    assert len({*country, *word, 144753322831965956}) == 3


def test_a_value_of_a_slot_that_shares_ids_is_that_of_the_other_slot() -> None:
    shared = [*SLOTS[:-1], {"name": "seen", "type": "sparse", "hash": True, "shares": "word"}]
    made = record("per_slot", slots=shared)
    country, word, seen = (feasigns_of(made, slot, ["ab"]) for slot in ("country", "word", "seen"))
    assert seen == word != country


@pytest.mark.parametrize("data_format", ["csv", "parquet"])
def test_a_value_of_a_weighted_slot_has_no_weight(data_format: str) -> None:
    weighted = [*SLOTS[:4], {"name": "tag", "type": "sparse", "hash": True, "weighted": True}]
    made = record(data_format=data_format, slots=weighted)
    plain = record(slots=[*SLOTS[:4], {"name": "tag", "type": "sparse", "hash": True}])
    for value in ("a:5", "10:30:x", "a"):
        assert feasigns_of(made, "tag", [value]) == feasigns_of(plain, "tag", [value])


def test_tokens_of_criteo_are_hexadecimal() -> None:
    slots = [
        {"name": "label", "type": "label"},
        {"name": "I1", "type": "dense"},
        {"name": "C1", "type": "sparse"},
        {"name": "C26", "type": "sparse"},
    ]
    made = record(data_format="criteo_tsv", slots=slots)
    assert feasigns_of(made, "C26", ["ff"]) == feasigns_of(made, "C1", ["00ff"])


@pytest.mark.parametrize(
    ("slot", "value", "said"),
    [
        ("users", "1", "no sparse slot 'users' is read from the data; did you mean 'user'"),
        ("range", "1", "no sparse slot 'range' is read"),
        ("age", "1", "no sparse slot 'age' is read"),
        ("user", "u56", "slot 'user': 'u56' is not a decimal feasign"),
        ("user", "0", "slot 'user': '0' is not a feasign"),
        ("word", "", "slot 'word': '' is not a feasign"),
    ],
)
def test_what_cannot_be_a_value_is_refused(slot: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        feasigns_of(record(), slot, [value])
