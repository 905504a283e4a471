"""Configurations that a run has stored, and what a later one that continues it takes from them.

A default may change between releases. What a run began with keeps its meaning: where a config does
not name a key, the run continues with the value it has stored.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from paddlebox.config.check import validate
from paddlebox.config.models import ModelType
from paddlebox.config.schema import Config
from paddlebox.config.section import Section
from paddlebox.config.table import TableConfig

# Keys, or sections of them, that change no result but the order of float sums in dense layers.
FREE = (
    "name", "table.share", "hbm", "mem", "ssd", "store", "feeder", "checkpoint", "security",
    "data.slots",  # a path; what is in it is compared
    "data.test_files", "data.dedup_slots", "data.retries", "data.pipe_timeout_s",
    "data.threads", "data.pack_threads",
    "trainer.dense_threads", "trainer.grace_s", "trainer.log_every_batches",
    "trainer.evaluate_after_pass", "trainer.evaluate_before_pass", "trainer.trace",
    "trainer.visualdl", "metrics", "save", "alerts", "publish",
)  # fmt: skip
# Keys that say which passes there are: free, as long as the passes that were trained stay.
PASSES = (
    "data.train_files", "data.files_per_pass", "data.date", "data.files_per_day", "trainer.epochs",
    "data.path_template", "data.from_hour", "data.until_hour", "data.time_zone",
    "data.ready_marker", "data.missing_hour", "data.late_s", "data.poll_s",
    "data.max_missing_hours",
)  # fmt: skip
# Keys that may change between passes, as tuning does: what is stored keeps its meaning.
TUNED = (
    "optimizer.learning_rate", "optimizer.weight_decay", "model.dropout",
    "table.embedx_threshold", "table.nonclk_coeff", "table.click_coeff", "table.show_scale",
    "table.on_bad_grad", "table.bad_grad_bound", "table.slot_learning_rates", "table.life",
    *(
        f"table.{part}.{name}"
        for part in ("embed", "embedx", "expand")
        for name in ("learning_rate", "l1", "l2", "min_bound", "max_bound")
    ),
    "data.batch_size", "data.shuffle", "data.drop_last", "data.max_bad_line_ratio",
    "data.max_line_bytes", "data.oversize_pass",
)  # fmt: skip
# A config without them says that there are none: `model` and the slots go with them.
_WHOLE = ("phases", "extra_tables")
# All others give rows or dense parameters their meaning. Keys of `extra_tables` are as of `table`.
_EXTRA = re.compile(rf"extra_tables\..+?\.(?=(?:{'|'.join(TableConfig.model_fields)})\b)")
_PHASE = re.compile(r"phases\.(?:join|update)\.")  # keys there are as of `model` and `optimizer`

# Values of keys that earlier releases did not write, because they did not have them.
_BEFORE_THE_KEY: dict[tuple[str, ...], Any] = {
    ("optimizer", "averaging"): 0.0,
    ("model", "dense_scale"): "none",
}

# Values of keys that a new run replaces by what it chooses.
_AUTO = {"batch_size": 0, "dense_scale": "auto"}

S = TypeVar("S", bound=Section)


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored config with the keys that its release did not have, at the values it behaved by.
    Keys that are absent from the result have the defaults of today."""
    fields = copy.deepcopy(dict(stored))
    phases = fields.get("phases") or {}
    for (section, key), value in _BEFORE_THE_KEY.items():
        for place in (fields, *phases.values()):
            if place is fields and phases and section not in fields:
                continue  # it is that of update
            of_place = place.setdefault(section, {})
            if isinstance(of_place, dict):
                of_place.setdefault(key, value)
    return fields


def read_stored(stored: Mapping[str, Any]) -> Config:
    """A stored config as a `Config`. Raises: pydantic.ValidationError."""
    return Config.model_validate(completed(stored), strict=False)


def within(key: str, keys: Sequence[str]) -> bool:
    """Whether a dotted key is one of keys, or below one. Keys of phases and extra_tables are as
    those of `model`, `optimizer` and `table`."""
    key = _PHASE.sub("", _EXTRA.sub("table.", key))
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def with_stored(config: Config, stored: Mapping[str, Any], source: str) -> Config:
    """The config with the stored values of keys that it does not name and that decide what a run
    learns.

    Args:
        stored: the config of a version.
        source: what to call the place of the stored config.

    Raises: ConfigError for a value that this release cannot read. Keys that it does not know are
        left out.
    """
    old = _read_known(stored, source)

    def is_free(key: str) -> bool:
        if key in _WHOLE and not getattr(config, key):
            return True
        if key == "trainer.epochs" and config.model.type is ModelType.LR:
            return False  # the run may have chosen it
        return within(key, (*FREE, *PASSES))

    return continued(config, old, is_free)


def _read_known(stored: Mapping[str, Any], source: str) -> Config:
    """A stored config without the keys that only later releases know."""
    fields = completed(stored)
    try:
        return Config.model_validate(fields, strict=False)
    except ValidationError as error:
        for wrong in error.errors(include_url=False):
            if wrong["type"] != "extra_forbidden":
                continue
            *sections, name = wrong["loc"]
            place: Any = fields
            for section in sections:  # a model's type stands among them, and is no section
                place = place.get(section, place)
            place.pop(name)
    return validate(Config, fields, source)


def with_batch_size(config: Config, size: int) -> Config:
    """The config with `auto` settled."""
    return config.model_copy(update={"data": config.data.model_copy(update={"batch_size": size})})


def continued(config: S, stored: Section, is_free: Callable[[str], bool], prefix: str = "") -> S:
    """``config`` with the values of ``stored`` for keys that it does not name, or names as auto.

    Args:
        stored: of the same type as config.
        is_free: whether a key, as a dotted path, is the config's own even where it is not named.
    """
    taken: dict[str, Any] = {}
    for name in type(config).model_fields:
        path, own, old = prefix + name, getattr(config, name), getattr(stored, name)
        if own == old or is_free(path):
            continue
        if isinstance(own, Section):
            if type(own) is type(old):
                taken[name] = continued(own, old, is_free, f"{path}.")
        elif name not in config.model_fields_set or (name in _AUTO and own == _AUTO[name]):
            taken[name] = old
        elif isinstance(own, dict) and own.keys() == old.keys():
            taken[name] = {
                key: continued(one, old[key], is_free, f"{path}.{key}.")
                if isinstance(one, Section) and type(one) is type(old[key])
                else one
                for key, one in own.items()
            }
    return config.model_copy(update=taken) if taken else config
