"""With which configs the commit of a run may be evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Slots
from paddlebox.errors import ConfigError
from paddlebox.store.record import VersionRecord
from paddlebox.training.config_changes import check_evaluated, description
from tests.support.configs import make_config, slots_fields

SLOTS = slots_fields(click="label", age={"type": "dense", "default": 0}, user={"hash": True})


def described(config: dict[str, Any], slots: list[dict[str, Any]], **more: Any) -> Any:
    model = {"hidden": [16], **config.get("model", {})}
    return (
        make_config(**{**config, "model": model}),
        Slots.model_validate({"slots": slots, **more}, strict=False),
    )


def check(config: dict[str, Any], slots: list[dict[str, Any]] | None = None, **more: Any) -> None:
    record = VersionRecord(3, 2, [], {}, 1, config=description(*described({}, SLOTS)))
    check_evaluated(Path("runs/r"), record, *described(config, slots or SLOTS, **more))


def test_other_files_formats_and_settings_of_training_are_fine() -> None:
    check({"data": {"test_files": ["b"], "format": "parquet", "batch_size": 7}})
    check({"trainer": {"epochs": 3}, "optimizer": {"learning_rate": 1.0}})
    check({"model": {"dropout": 0.5}})
    check({}, [SLOTS[0], SLOTS[1] | {"column": "years"}, SLOTS[2]], csv={"delimiter": ";"})


def test_a_run_on_weighted_text_can_be_evaluated_on_columns_and_the_other_way_around() -> None:
    text = slots_fields(click="label", tags={"weighted": True, "pooling": "mean"})
    columns = [text[0], text[1] | {"weight_column": "w"}]
    for trained, format_of, evaluated, other in (
        (text, "csv", columns, "parquet"),
        (columns, "parquet", text, "csv"),
    ):
        config = description(*described({"data": {"format": format_of}}, trained))
        record = VersionRecord(3, 2, [], {}, 1, config=config)
        check_evaluated(Path("r"), record, *described({"data": {"format": other}}, evaluated))
        plain = [evaluated[0], evaluated[1] | {"pooling": "sum"}]
        with pytest.raises(ConfigError, match=r"slots\.yaml tags, weight_column: was"):
            check_evaluated(Path("r"), record, *described({}, plain))


@pytest.mark.parametrize(
    ("config", "slots", "said"),
    [
        ({"data": {"key_space": "shared"}}, SLOTS, 'key_space: was "per_slot", now "shared"'),
        ({"data": {"negative_rate": 0.1}}, SLOTS, r"negative_rate: was 1\.0, now 0\.1"),
        ({"model": {"hidden": [8]}}, SLOTS, r"model.hidden: was \[16\], now \[8\]"),
        (
            {},
            [*SLOTS[:2], SLOTS[2] | {"hash": False}],
            "slots.yaml user, hash: was true, now false",
        ),
        ({}, [SLOTS[0], SLOTS[1] | {"log1p": True}, SLOTS[2]], "slots.yaml age, log1p: was false"),
        ({}, [*SLOTS, {"name": "item", "type": "sparse"}], "slots.yaml item: new"),
    ],
)
def test_what_makes_other_feasigns_or_another_model_is_refused(
    config: dict[str, Any], slots: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check(config, slots)


def test_a_store_without_a_config_is_not_compared() -> None:
    record = VersionRecord(3, 2, [], {}, 1)
    check_evaluated(Path("r"), record, *described({"model": {"hidden": [8]}}, SLOTS))
