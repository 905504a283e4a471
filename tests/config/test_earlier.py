"""Keys that were renamed or removed: in a user's config, in overrides, and in stored configs."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config, load_config
from paddlebox.config.describe import describe
from paddlebox.config.earlier import REMOVED, RENAMED, table_of_stored
from paddlebox.config.stored import completed, read_stored, with_stored
from paddlebox.errors import ConfigError

FIELDS: dict[str, Any] = {
    "name": "run",
    "data": {"format": "csv", "slots": "s.yaml", "train_files": ["a"]},
    "model": {"type": "dnn"},
}
# A model that has the new key, for each renamed key of `model` but those of rank_attention, which
# only phases have.
OWNERS = {
    "cross_layers": "dcn", "attention_layers": "autoint", "mask_blocks": "masknet",
    "blocks": "bst", "levels": "ple", "attention_heads": "autoint", "fusion_heads": "finalmlp",
    "attention_dim": "autoint", "transfer_dim": "aitm",
    "mask_dim": "masknet", "mixed_experts": "mmoe", "cross_experts": "dcn_v2",
    "shared_experts": "ple",
}  # fmt: skip
NEEDED = {"bst": {"history": {"h": "i"}}}


def model(kind: str, **keys: Any) -> dict[str, Any]:
    return {"type": kind, **NEEDED.get(kind, {}), **keys}


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def merged(fields: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {**fields}
    for name, value in more.items():
        old = both.get(name)
        both[name] = (
            merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return both


def written(folder: Path, fields: dict[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps(fields))
    return path


def stored(**changes: Any) -> dict[str, Any]:
    """A config that an earlier release has stored; today's defaults stand for the rest."""
    fields = copy.deepcopy(merged(FIELDS, changes))
    return merged(dict(Config.model_validate(FIELDS).model_dump(mode="json")), fields)


# ---- a user's config


def test_no_key_has_a_name_that_is_renamed_or_removed() -> None:
    keys = {key.path for key in describe()}
    assert not keys & {*RENAMED, *REMOVED}
    for old, new in RENAMED.items():
        assert f"{old.rpartition('.')[0]}.{new}" in keys
    named = " ".join(removed.instead for removed in REMOVED.values())
    for word in named.replace(",", " ").replace(":", " ").split():
        section = word.partition(".")[0]
        if section in Config.model_fields and "." in word:
            assert any(key == word or key.startswith(f"{word}.") for key in keys), word


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_is_an_error_that_says_what_to_use(key: str, tmp_path: Path) -> None:
    instead = REMOVED[key].instead
    fields = copy.deepcopy(FIELDS)
    if key.startswith("model."):
        fields["model"] = model("fibinet")
    path = written(tmp_path, merged(fields, nested(key, 1)))
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert f"{key}: is no longer a key: {instead}" in str(error.value)
    path = written(tmp_path, fields)
    with pytest.raises(ConfigError) as error:
        load_config(path, [f"{key}=1"])
    assert f"{key} (from -o): is no longer a key: {instead}" in str(error.value)


def test_removed_keys_of_phases_and_of_further_tables_are_named_where_they_are(
    tmp_path: Path,
) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "model"}
    fields["data"] = {**FIELDS["data"], "logkey": True}
    phase = {"model": model("dssm", user=["u"], item=["i"], smoothing=3.0)}
    fields["phases"] = {"join": {"model": model("dnn")}, "update": phase}
    fields["extra_tables"] = {"items": {"expand": {"rule": "adam"}}}
    with pytest.raises(ConfigError) as error:
        load_config(written(tmp_path, fields))
    assert "phases.update.model.smoothing: is no longer a key" in str(error.value)
    assert "extra_tables.items.expand: is no longer a key" in str(error.value)


@pytest.mark.parametrize(("old", "kind"), OWNERS.items())
def test_a_renamed_key_works_and_warns(
    old: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = RENAMED[f"model.{old}"]
    path = written(tmp_path, {**FIELDS, "model": model(kind, **{old: 4})})
    assert getattr(load_config(path).model, new) == 4
    plain = written(tmp_path, {**FIELDS, "model": model(kind)})
    assert getattr(load_config(plain, [f"model.{old}=5"]).model, new) == 5
    assert [record.message for record in caplog.records] == [
        f"model.{old} is deprecated: use model.{new}; the next release refuses the old name"
    ] * 2


def test_every_renamed_key_has_an_owner_above() -> None:
    assert {key.removeprefix("model.") for key in RENAMED} == {*OWNERS, "attended_dim"}


def test_an_override_wins_over_the_file_under_either_name(tmp_path: Path) -> None:
    for name in ("layers", "cross_layers"):
        path = written(tmp_path, {**FIELDS, "model": model("dcn", **{name: 4})})
        for override in ("model.layers=5", "model.cross_layers=5"):
            assert load_config(path, [override]).model.layers == 5  # type: ignore[union-attr]
    assert load_config(path, ["model={type: dcn, cross_layers: 6}"]).model.layers == 6  # type: ignore[union-attr]


def test_a_key_under_both_names_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {**FIELDS, "model": model("dcn", layers=4, cross_layers=4)})
    with pytest.raises(ConfigError, match=r"both are given: take cross_layers out"):
        load_config(path)


def test_renamed_keys_of_phases_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "model"}
    fields["data"] = {**FIELDS["data"], "logkey": True}
    join = {"model": model("rank_attention", attended_dim=5)}
    fields["phases"] = {"join": join, "update": {"model": model("dcn", cross_layers=2)}}
    config = load_config(written(tmp_path, fields), ["phases.join.model.attended_dim=6"])
    assert config.phases["join"].model.output_dim == 6  # type: ignore[union-attr]
    assert config.model.layers == 2  # type: ignore[union-attr]
    assert "phases.join.model.attended_dim is deprecated" in caplog.text
    old = config.model_dump(mode="json")
    for place in (old, old["phases"]["update"]):
        place["model"]["cross_layers"] = place["model"].pop("layers")
    old["phases"]["join"]["model"]["attended_dim"] = old["phases"]["join"]["model"].pop(
        "output_dim"
    )
    assert read_stored(old) == config


# ---- stored configs


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_with_its_old_default_is_dropped(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = stored(**nested(key, REMOVED[key].default))
    assert read_stored(old) == read_stored(stored())
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.poll_s", 0.1), ("data.max_missing_hours", 3), ("data.retries", 9),
        ("data.pack_threads", 2), ("data.pipe_timeout_s", 1.0), ("ssd.compaction", False),
        ("ssd.space_ceiling", 3.0), ("ssd.drive_bytes_per_day", 7), ("publish.every", "date"),
        ("trainer.log_every_batches", 9), ("alerts.window_passes", 48), ("alerts.every_s", 1.0),
        ("alerts.min_instances", 100), ("alerts.command_timeout_s", 5.0),
        ("table.bad_grad_bound", 3.0), ("ranks.error_feedback", False), ("table.embed.beta", 0.5),
    ],
)  # fmt: skip
def test_a_value_that_no_result_depends_on_is_dropped_and_logged(
    key: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old = stored(**nested(key, value))
    assert read_stored(old) == read_stored(stored())
    text = f"the stored {key}, {value}, is not used: {REMOVED[key].instead}"
    assert [record.message for record in caplog.records] in ([text], [])  # once in a process


@pytest.mark.parametrize(
    ("key", "value", "beside"),
    [
        ("model.senet_reduction", 2, {"model": model("fibinet")}),
        ("model.hidden_gates", False, {"model": model("gatenet")}),
        ("model.mask_reduction", 0.5, {"model": model("masknet")}),
        ("model.calibration", 0.1, {"model": model("aitm")}),
        ("model.smoothing", 5.0, {"model": model("dssm", user=["u"], item=["i"])}),
        ("table.bad_grad_bound", 3.0, {"table": {"on_bad_grad": "clip"}}),
        ("table.embed.beta", 0.5, {"table": {"embed": {"rule": "ftrl"}}}),
        ("table.embedx.beta", 0.5, {"table": {"embedx": {"rule": "ftrl"}}}),
        ("table.expand", {"rule": "adam"}, {"table": {"expand_dim": 2}}),
        ("ranks.error_feedback", False, {"ranks": {"gradients": "int8"}}),
    ],
)
def test_a_value_that_results_depend_on_is_refused_with_the_reason(
    key: str, value: Any, beside: dict[str, Any]
) -> None:
    old = stored(**merged(beside, nested(key, value)))
    before = copy.deepcopy(old)
    with pytest.raises(
        ConfigError, match=rf"^{key} is .* in the stored config, .*{REMOVED[key].instead}"
    ):
        completed(old)
    with pytest.raises(ConfigError, match=rf"^{key} is "):
        with_stored(Config.model_validate(FIELDS), old, "run: config")
    assert old == before


def test_expand_that_learns_as_embedx_does_is_dropped() -> None:
    rule = {"rule": "adam", "learning_rate": 0.5}
    old = stored(table={"expand_dim": 2, "expand": rule})
    old["table"]["embedx"] = {**rule}
    assert read_stored(old).table.embedx.learning_rate == 0.5
    layout = {**old["table"], "seed": 7, "expand": {**rule}}
    assert "expand" not in table_of_stored(layout)
    with pytest.raises(ConfigError, match=r"^table\.expand is "):
        table_of_stored({**layout, "expand": {"rule": "naive"}})
    assert "expand" not in table_of_stored({**layout, "expand_dim": 0, "expand": {"rule": "naive"}})


def test_renamed_keys_are_translated_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    for old, kind in OWNERS.items():
        before = stored()
        before["model"] = model(kind, **{old: 4})
        assert getattr(read_stored(before).model, RENAMED[f"model.{old}"]) == 4
    assert not caplog.records


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"dense": "all_reduce", "sync_weight_step": 16}, {}),
        ({"dense": "average", "sync_weight_step": 8}, {"sync_weight_step": 8}),
        ({"dense": "average"}, {"sync_weight_step": 16}),
        ({"sparse_sync": "sync", "staleness": 1}, {}),
        ({"sparse_sync": "async", "staleness": 4}, {"staleness": 4}),
        ({"sparse_sync": "async"}, {"staleness": 1}),
    ],
)
def test_modes_of_ranks_are_numbers(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = stored()
    before["ranks"] = old
    assert read_stored(before).ranks == Config.model_validate({**FIELDS, "ranks": new}).ranks


GUARD = {"max_auc_drop": 0.1, "max_copc_drift": 0.25, "action": "stop"}
BOUNDS = {"max_auc_drop": 0.1, "min_copc": 0.75, "max_copc": 1.25}


@pytest.mark.parametrize(
    ("old", "quality", "bounds"),
    [
        ({"checkpoint": {"guard": GUARD}}, "stop", BOUNDS),
        ({"checkpoint": {"guard": {**GUARD, "action": "warn"}}}, "warn", BOUNDS),
        ({"publish": {"max_copc_drift": 0.25}}, "warn", {**BOUNDS, "max_auc_drop": 0.0}),
        ({"alerts": {"max_auc_drop": 0.02}}, "warn", {"max_auc_drop": 0.02}),
        # A pass that was committed still is.
        ({"checkpoint": {"guard": GUARD}, "alerts": {"max_auc_drop": 0.02}}, "stop", BOUNDS),
        (
            {"checkpoint": {"guard": {**GUARD, "action": "warn"}}, "alerts": {"max_copc": 1.1}},
            *("warn", {**BOUNDS, "max_copc": 1.1}),
        ),
        ({"publish": {"max_copc_drift": 2.0}}, "warn", {"min_copc": 0.0, "max_copc": 3.0}),
    ],
)
def test_bounds_of_guard_and_gate_are_those_of_the_alerts(
    old: dict[str, Any], quality: str, bounds: dict[str, float]
) -> None:
    found = read_stored(stored(**old))
    assert found.checkpoint.guard.quality == quality
    expected = {"max_auc_drop": 0.0, "min_copc": 0.0, "max_copc": 0.0, **bounds}
    assert {name: getattr(found.alerts, name) for name in expected} == expected


def test_a_run_that_is_continued_is_not_told_of_old_alerts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = Config.model_validate(FIELDS)
    with caplog.at_level(logging.WARNING):
        assert with_stored(config, stored(checkpoint={"guard": GUARD}), "run: config").alerts == (
            config.alerts
        )
    assert not caplog.records
