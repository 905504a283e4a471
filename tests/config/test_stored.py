"""What a run has stored keeps its meaning: keys that a config does not name have the values that
the run began with, whatever the defaults of today are."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config, Phase
from paddlebox.config.models import DnnConfig
from paddlebox.config.stored import with_stored
from paddlebox.errors import ConfigError
from paddlebox.launch import arguments as shared
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from tests.support.configs import config_fields

FIELDS = config_fields()
OLD: dict[str, Any] = {  # each is another value than today's default
    "data": {**FIELDS["data"], "key_space": "shared", "batch_size": 512},
    "model": {"type": "dnn", "use_cvm": True, "hidden": [8], "click_prior": False},
    "optimizer": {"averaging": 0.0, "learning_rate": 0.5},
    "table": {"embedx_dim": 4, "embed": {"initial_g2sum": 7.0}},
}
PHASE: dict[str, Any] = {
    "model": {"type": "dnn", "hidden": [8]},
    "optimizer": {"averaging": 0.25},
}
ITEMS = {"items": {"embedx_dim": 5, "embed": {"learning_rate": 0.5}}}


def config(**changes: Any) -> Config:
    fields = copy.deepcopy({**FIELDS, **changes})
    if "phases" in fields:
        fields.pop("model")
        fields["data"]["logkey"] = True
    return Config.model_validate(fields)


def stored(**changes: Any) -> dict[str, Any]:
    """A config as a commit has it."""
    return dict(config(**changes).model_dump(mode="json"))


def goes_on(own: Config, old: dict[str, Any]) -> Config:
    return with_stored(own, old, "run: config")


def test_keys_that_are_not_named_have_the_stored_values() -> None:
    old = stored(**OLD, seed=7)
    assert goes_on(config(), old).model_dump(mode="json") == old


def test_keys_that_are_named_win_and_their_neighbours_are_the_stored_ones() -> None:
    own = config(
        model={"type": "dnn", "hidden": [3]},
        table={"embed": {"learning_rate": 0.1}},
        optimizer={"averaging": 0.5},
    )
    made = goes_on(own, stored(**OLD))
    assert isinstance(made.model, DnnConfig)
    assert made.model.hidden == (3,)
    assert made.model.use_cvm
    assert (made.table.embed.learning_rate, made.table.embed.initial_g2sum) == (0.1, 7.0)
    assert (made.optimizer.averaging, made.optimizer.learning_rate) == (0.5, 0.5)


def test_a_named_batch_size_wins_and_auto_is_that_of_the_run() -> None:
    old = stored(**OLD)
    for size, expected in ((7, 7), ("auto", 512), (0, 512)):
        own = config(data={**FIELDS["data"], "batch_size": size})
        assert goes_on(own, old).data.batch_size == expected


def test_a_rule_that_brings_its_own_learning_rate_does_not_name_it() -> None:
    adam = {"embedx": {"rule": "adam"}}
    assert config(table=adam).table.embedx.learning_rate == 0.001
    old = stored(table={"embedx": {"rule": "adam", "learning_rate": 0.25}})
    assert goes_on(config(table=adam), old).table.embedx.learning_rate == 0.25


def test_keys_of_phases_have_the_stored_values_too() -> None:
    phases = {"join": PHASE, "update": {**PHASE, "optimizer": {"averaging": 0.75}}}
    old = stored(phases=phases)
    bare = {"model": {"type": "dnn"}}
    made = goes_on(config(phases={"join": bare, "update": bare}), old)
    assert made.model_dump(mode="json") == old
    assert made.phases["join"].optimizer.averaging == 0.25
    update = made.of_phase(Phase.UPDATE).model
    assert isinstance(update, DnnConfig)
    assert update.hidden == (8,)


def test_a_config_without_phases_or_extra_tables_says_that_there_are_none() -> None:
    assert goes_on(config(), stored(phases={"join": PHASE, "update": PHASE})).phases == {}
    assert goes_on(config(), stored(extra_tables=ITEMS)).extra_tables == {}


def test_keys_of_extra_tables_have_the_stored_values_too() -> None:
    old = stored(extra_tables=ITEMS)
    assert goes_on(config(extra_tables={"items": {}}), old).model_dump(mode="json") == old
    other = goes_on(config(extra_tables={"users": {}}), old)
    assert set(other.extra_tables) == {"users"}


def test_a_model_of_another_type_has_keys_of_its_own() -> None:
    made = goes_on(config(model={"type": "deepfm"}), stored(**OLD))
    assert made.model == config(model={"type": "deepfm"}).model


def test_budgets_and_passes_are_those_of_the_config() -> None:
    old = stored(
        mem={"budget_bytes": 1 << 21},
        trainer={"epochs": 3, "grace_s": 5.0},
        data={**FIELDS["data"], "train_files": ["a", "b"], "files_per_pass": 2, "threads": 3},
        checkpoint={"every": 3},
    )
    made, own = goes_on(config(), old), config()
    assert (made.mem, made.checkpoint) == (own.mem, own.checkpoint)
    assert made.trainer == own.trainer.having({"epochs": 3})  # the run may have chosen them
    assert made.data.train_files == ("train.csv",)
    assert (made.data.files_per_pass, made.data.threads) == (0, own.data.threads)


def test_a_stored_config_that_cannot_be_read_is_one_error() -> None:
    other = {**FIELDS, "data": {**FIELDS["data"], "format": "shiny"}, "bright": 1}
    with pytest.raises(
        ConfigError,
        match=r"(?s)^run: config: 2 errors.*data\.format: expected .*found 'shiny'.*"
        r"bright: unknown key.*another version of paddlebox stored this config: use that version",
    ):
        goes_on(config(), other)


def test_tools_that_are_given_a_config_and_a_run_take_the_stored_values(tmp_path: Path) -> None:
    run, path = tmp_path / "run", tmp_path / "config.yaml"
    path.write_text(json.dumps({**FIELDS, "model": {"type": "dnn", "hidden": [8]}}))
    arguments = argparse.Namespace(config=path, run_dir=run, overrides=["seed=3"])
    assert shared.config_of(arguments)[0].data.key_space == "per_slot", "there is no run"
    with VersionStore.open_writer(run / "store") as manifest:
        described = {"config": stored(**OLD, seed=7), "slots": {"slots": []}}
        manifest.append(VersionRecord(1, 0, [], {}, 1, config=described))
    made, _ = shared.config_of(arguments)
    assert made.model_dump(mode="json") == stored(**OLD, seed=3)
