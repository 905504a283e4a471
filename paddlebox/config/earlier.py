"""Keys of earlier releases: which were renamed, which were removed, and what becomes of them.

A user's config may have the old name of a renamed key for one release, with a warning. A removed
key in a user's config is an error that says what to use instead.

In a config that an earlier release has stored, renamed keys get their new names. A removed key is
translated if there is an equal setting, and dropped if results do not depend on it. If results do
depend on its value, and this release cannot have that value, the config is refused.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddlebox.errors import ConfigError

log = logging.getLogger("paddlebox")

Fields = dict[str, Any]

# Old key -> new name in the same section. Values and meaning are the same.
RENAMED = {
    "model.cross_layers": "layers",
    "model.attention_layers": "layers",
    "model.mask_blocks": "layers",
    "model.blocks": "layers",
    "model.levels": "layers",
    "model.attention_heads": "heads",
    "model.fusion_heads": "heads",
    "model.attention_dim": "head_dim",
    "model.attended_dim": "output_dim",
    "model.transfer_dim": "output_dim",
    "model.mask_dim": "output_dim",
    "model.mixed_experts": "experts",
    "model.cross_experts": "experts",
    "model.shared_experts": "experts",
}


@dataclass(frozen=True)
class Removed:
    """A key that this release does not have."""

    #: The value that this release always has: the default of the last release with the key.
    default: Any
    #: What to do without the key, for messages.
    instead: str
    #: Whether results depend on the key, given the fields of its section. If so, a stored value
    #: other than the default is refused.
    matters: Callable[[Fields], bool] = lambda _: False


def _always(_: Fields) -> bool:
    return True


def _ftrl(rule: Fields) -> bool:
    return bool(rule.get("rule") == "ftrl")


REMOVED = {
    "table.expand": Removed(None, "expand uses the update rule of table.embedx"),
    "table.embed.beta": Removed(1.0, "it is always 1, as in the paper", _ftrl),
    "table.embedx.beta": Removed(1.0, "it is always 1, as in the paper", _ftrl),
    "table.bad_grad_bound": Removed(
        10.0, "the bound is always 10", lambda table: bool(table.get("on_bad_grad") == "clip")
    ),
    "store.parity": Removed(0, "use ranks.parity, or checkpoint.copy_to"),
    "ssd.compaction": Removed(True, "segments are always merged in the background"),
    "ssd.space_ceiling": Removed(2.0, "it is always 2.0"),
    "ssd.drive_bytes_per_day": Removed(
        0, "compare `written_a_day` of summary.json with the drive's rating"
    ),
    "data.retries": Removed(3, "a failed request is always repeated 3 times"),
    "data.pipe_timeout_s": Removed(600.0, "it is always 600"),
    "data.pack_threads": Removed(0, "the number of packing threads is tuned during the run"),
    "data.poll_s": Removed(10.0, "the run checks often at first, then every 10 s"),
    "data.max_missing_hours": Removed(24, "more than 24 missing hours in a row stop the run"),
    "model.senet_reduction": Removed(3, "it is always 3, as in the paper", _always),
    "model.hidden_gates": Removed(True, "hidden layers always have gates", _always),
    "model.mask_reduction": Removed(1.0, "a mask is always as wide as its input", _always),
    "model.calibration": Removed(0.6, "it is always 0.6, as in the paper", _always),
    "model.smoothing": Removed(10.0, "it is always 10", _always),
    "trainer.log_every_batches": Removed(100, "the progress bar is updated every 100 batches"),
    "checkpoint.guard.max_auc_drop": Removed(
        0.0, "use alerts.max_auc_drop with checkpoint.guard.quality: stop"
    ),
    "checkpoint.guard.max_copc_drift": Removed(
        0.0, "use alerts.min_copc and alerts.max_copc with checkpoint.guard.quality: stop"
    ),
    "checkpoint.guard.action": Removed("stop", "use checkpoint.guard.quality"),
    "ranks.error_feedback": Removed(
        True,
        "it is always on where gradients have fewer than 32 bits",
        lambda ranks: bool(ranks.get("gradients", "float32") != "float32"),
    ),
    "ranks.dense": Removed(
        "all_reduce", "use ranks.sync_weight_step: 0 for all_reduce, 1 or more for average"
    ),
    "ranks.sparse_sync": Removed("sync", "use ranks.staleness: 0 for sync, 1 or more for async"),
    "publish.every": Removed("pass", "each save is applied; use save.delta_every for fewer saves"),
    "publish.max_copc_drift": Removed(
        0.0, "use alerts.min_copc and alerts.max_copc, which the gate applies too"
    ),
    "alerts.min_instances": Removed(
        1, "an empty pass always alerts; compare the figures of alerts.metrics_port"
    ),
    "alerts.window_passes": Removed(24, "a mean is always over 24 passes"),
    "alerts.every_s": Removed(10.0, "it is always 10"),
    "alerts.command_timeout_s": Removed(30.0, "use Prometheus"),
    "alerts.command": Removed("", "use the alerts at alerts.metrics_port: docs/runbook.md"),
    "alerts.min_instances_share": Removed(0.0, "use a rule of Prometheus: docs/runbook.md"),
    "alerts.max_bad_line_ratio": Removed(0.0, "use data.max_bad_line_ratio"),
    "alerts.stall_s": Removed(0.0, "use a rule of Prometheus: docs/runbook.md"),
    "alerts.min_free_bytes": Removed(0, "use a rule of Prometheus: docs/runbook.md"),
    "alerts.max_serving_lag_s": Removed(0.0, "use a rule of Prometheus: docs/runbook.md"),
    "checkpoint.guard.non_finite": Removed("stop", "the guard always stops"),
    "checkpoint.copy_every": Removed(1, "each commit is copied, unless a copy is running"),
    "publish.min_auc": Removed(0.0, "use the bounds of alerts, which the gate applies too"),
    "trainer.exact": Removed(False, "a run warns if its products are computed differently"),
    "trainer.visualdl": Removed("", "tools/report.py shows a run"),
    "ranks.dense_top_k": Removed(0.0, "use ranks.sync_weight_step", _always),
    "optimizer.schedule_steps": Removed(0, "there is no cosine", _always),
    "optimizer.warmup_steps": Removed(0, "there is no warm-up", _always),
    "optimizer.patience": Removed(1, "it is always 1", _always),
    "ranks.transport": Removed("auto", "MPI is used if it started the ranks, else TCP"),
    "ranks.two_level": Removed(False, "use ranks.rows and ranks.gradients: int8"),
    "feeder.spill_dir": Removed("", "set TMPDIR"),
    "feeder.cache_dir": Removed("", "set XDG_CACHE_HOME"),
    "data.oversize_pass": Removed("split", "a pass is always split"),
    "data.sequences.history.expire_passes": Removed(168, "it is always 168"),
    "table.life.auto": Removed(True, "a day ends by itself if passes have dates", _always),
    "save.base_every": Removed("date", "there is a base for each date"),
    "ssd.space_target": Removed(1.28, "it is always 1.28"),
}


def key_of(location: Sequence[int | str]) -> str:
    """The key of a location. Keys in `phases` and `extra_tables` are those of the top level."""
    if location[0] == "phases":
        location = location[2:]
    elif location[0] == "extra_tables":
        location = ("table", *location[2:])
    return ".".join(map(str, location))


def present_key(key: str) -> str:
    """The present name of a key that an override names. Warns if the key was renamed."""
    *section, name = key.split(".")
    new = RENAMED.get(key_of([*section, name]))
    if new is None:
        return key
    _warn_of_rename(key, ".".join([*section, new]))
    return ".".join([*section, new])


def rename(fields: Fields, source: str) -> None:
    """Give renamed keys of a user's config their new names. Warns of each.

    Raises:
        ConfigError: a key is given under both names.
    """
    for prefix, section, old, new in _renamed(fields):
        if new in section:
            raise ConfigError(
                f"{source}: {prefix}.{old} is the old name of {prefix}.{new}, and both are given: "
                f"take {old} out"
            )
        _warn_of_rename(f"{prefix}.{old}", f"{prefix}.{new}")
        section[new] = section.pop(old)


def translate(fields: Fields) -> None:
    """Turn a stored config into one that an earlier release would have stored with today's keys.

    Raises:
        ConfigError: results depend on a value that this release does not have.
    """
    for _, section, old, new in _renamed(fields):
        section[new] = section.pop(old)
    for prefix, root in _roots(fields):
        _expand_is_as_embedx(root, prefix)
        _one_judge(root)
        _numbers_for_modes(_at(root, "ranks"))
        for key, removed in REMOVED.items():
            section, name = _place(root, key)
            if name not in section:
                continue
            value = section.pop(name)
            if value == removed.default or removed.default is None:
                continue
            if removed.matters(section):
                raise _refused(f"{prefix}{key}", value, removed.instead)
            _log_once(f"the stored {prefix}{key}, {value}, is not used: {removed.instead}")


def _expand_is_as_embedx(root: Fields, prefix: str) -> None:
    table = _at(root, "table")
    expand = table.get("expand")
    if expand is not None and table.get("expand_dim") and expand != table.get("embedx"):
        raise _refused(f"{prefix}table.expand", expand, REMOVED["table.expand"].instead)


def _one_judge(root: Fields) -> None:
    """Replace the bounds of the guard and of the gate by bounds of the alerts."""
    guard, publish = _at(root, "checkpoint.guard"), _at(root, "publish")
    drop, drift = guard.pop("max_auc_drop", 0), guard.pop("max_copc_drift", 0)
    action, shown = guard.pop("action", "stop"), publish.pop("max_copc_drift", 0)
    if not (drop or drift or shown):
        return
    alerts = root.setdefault("alerts", {})
    if drop or drift:
        guard["quality"] = action
    for bound, is_guard in ((drift, True), (shown, False)):
        wanted = {"min_copc": max(0.0, 1 - bound), "max_copc": 1 + bound} if bound else {}
        wanted |= {"max_auc_drop": drop} if drop and is_guard else {}
        for name, value in wanted.items():
            old = alerts.get(name) or value
            # A run must not stop where it did not stop before.
            alerts[name] = value if is_guard and action == "stop" else old
            if old != value:
                _log_once(
                    f"the stored config has two bounds in place of alerts.{name}, {old} and "
                    f"{value}; {alerts[name]} is used"
                )


def _numbers_for_modes(ranks: Fields) -> None:
    modes = (("dense", "average", "sync_weight_step", 16), ("sparse_sync", "async", "staleness", 1))
    for mode, on, number, default in modes:
        if mode in ranks:
            ranks[number] = ranks.get(number, default) if ranks.pop(mode) == on else 0


def table_of_stored(layout: Mapping[str, Any]) -> Fields:
    """The keys in this release of a table that an earlier release has stored.

    Raises:
        ConfigError: as for `translate`.
    """
    fields = {"table": copy.deepcopy(dict(layout))}
    translate(fields)
    return fields["table"]


def _renamed(fields: Fields) -> Iterator[tuple[str, Fields, str, str]]:
    """Path of the section, the section, old and new name of each renamed key that is given."""
    for prefix, root in _roots(fields):
        for key, new in RENAMED.items():
            section, old = _place(root, key)
            if old in section:
                yield f"{prefix}{key.rpartition('.')[0]}", section, old, new


def _roots(fields: Fields) -> Iterator[tuple[str, Fields]]:
    """A config, its phases and its further tables, each with the prefix of its keys."""
    yield "", fields
    for name, phase in _at(fields, "phases").items():
        if isinstance(phase, dict):
            yield f"phases.{name}.", phase
    for name, table in _at(fields, "extra_tables").items():
        yield f"extra_tables.{name}: ", {"table": table}


def _place(root: Fields, key: str) -> tuple[Fields, str]:
    section, _, name = key.rpartition(".")
    return _at(root, section), name


def _at(root: Fields, path: str) -> Fields:
    """The section at a path; an empty one if there is none."""
    for name in path.split("."):
        root = root.get(name) or {}
        if not isinstance(root, dict):
            return {}
    return root


def _refused(key: str, value: Any, instead: str) -> ConfigError:
    return ConfigError(
        f"{key} is {value} in the stored config, and results depend on it, but this release does "
        f"not have the key: {instead}; use the release that stored it"
    )


def _warn_of_rename(old: str, new: str) -> None:
    log.warning("%s is deprecated: use %s; the next release refuses the old name", old, new)


@functools.cache
def _log_once(text: str) -> None:
    log.warning("%s", text)
