"""Reads the config that a run has stored, and merges it with the config that continues the run: if
that does not name a key, the run keeps its stored value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from paddlebox.config.check import validate
from paddlebox.config.schema import Config
from paddlebox.config.section import Section
from paddlebox.config.stream import StreamConfig
from paddlebox.config.table import TableConfig
from paddlebox.errors import ConfigError

# Keys and sections that do not affect results, except for the order of float sums in dense layers.
FREE = (
    "name", "table.share", "hbm", "mem", "ssd", "feeder", "checkpoint", "security",
    "data.slots",  # only the path is free: the contents of the file are compared
    "data.test_files", "data.dedup_slots", "data.threads",
    "data.keep_values", "data.keep_values_bytes",
    "trainer.dense_threads", "trainer.grace_s", "trainer.evaluate_passes", "trainer.trackers",
    "ranks.parity",
    "metrics", "save", "alerts", "publish",
)  # fmt: skip
# Keys that determine the passes. They may change as long as the trained passes stay the same.
PASSES = (
    "data.train_files", "data.files_per_pass", "data.date", "data.files_per_day", "trainer.epochs",
    "data.path_template", "data.from_hour", "data.until_hour", "data.time_zone",
    "data.ready_marker", "data.missing_hour", "data.late_s",
    *(f"data.stream.{name}" for name in StreamConfig.model_fields), "data.stream",
)  # fmt: skip
SLOT_RATES = "slots.yaml learning rates"  # of all slots, as `differences` names them
# Keys that may change between passes, as in tuning. Stored rows and parameters stay valid.
TUNED = (
    "optimizer.learning_rate", "optimizer.weight_decay",
    "model.dropout", "trainer.dense_dtype",
    "table.embedx_threshold", "table.show_scale",
    "table.on_bad_grad", "table.life", "table.weight_decay", "table.max_rows", "table.evict",
    "table.pretrained",
    SLOT_RATES,
    *(
        f"table.{part}.{name}"
        for part in ("embed", "embedx")
        for name in ("learning_rate", "l1", "l2")
    ),
    "data.batch_size", "data.shuffle", "data.drop_last", "data.max_bad_line_ratio",
    "data.share",
    # Not the user, by which stored histories were made.
    *(f"data.sequences.{name}" for name in ("max_length", "split", "history")),
)  # fmt: skip
# Keys that may differ between the ranks of a job. They affect only what a rank does by itself.
OF_HOST = (
    "name", "hbm", "mem", "ssd", "feeder", "security", "alerts", "data.slots",
    "data.threads", "trainer.dense_threads", "trainer.grace_s",
)  # fmt: skip
# If a config does not name these sections, it has none: the stored ones are not taken over, because
# `model` and the slots depend on them.
_WHOLE = ("phases", "extra_tables")
# All other keys give rows or dense parameters their meaning. Keys of `extra_tables` count as those
# of `table`.
_EXTRA = re.compile(rf"extra_tables\..+?\.(?=(?:{'|'.join(TableConfig.model_fields)})\b)")
_PHASE = re.compile(r"phases\.(?:join|update)\.")  # keys there count as `model` and `optimizer`

# Values that a new run replaces by values it chooses.
_AUTO = {
    **dict.fromkeys(("exact_values", "dense_scale", "dense_ranges", "click_prior"), "auto"),
    "batch_size": 0,
}

S = TypeVar("S", bound=Section)


def read_config(stored: Mapping[str, Any], source: str) -> Config:
    """Validate a config that a run has stored. Raises: ConfigError with all wrong keys."""
    try:
        return validate(Config, stored, source)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\n  another version of paddlebox stored this config: use that version, or "
            "start a new run"
        ) from None


def within(key: str, keys: Sequence[str]) -> bool:
    """Whether a dotted key is one of `keys`, or below one of them. Keys of phases count as `model`
    and `optimizer`, those of extra_tables as `table`."""
    key = _PHASE.sub("", _EXTRA.sub("table.", key))
    return any(key == one or key.startswith(f"{one}.") for one in keys)


def with_stored(config: Config, stored: Mapping[str, Any], source: str) -> Config:
    """The config that continues a run, with the values of a stored one for those keys that it does
    not name and that affect what the run learns. Raises: as `read_config`."""
    old = read_config(stored, source)

    def is_free(key: str) -> bool:
        if key in _WHOLE and not getattr(config, key):
            return True
        if key.startswith("data.holdout."):  # its keys are one rule
            return True
        if key == "trainer.epochs":
            return False  # the run may have chosen its value
        return within(key, (*FREE, *PASSES))

    return continued(config, old, is_free)


def continued(config: S, stored: Section, is_free: Callable[[str], bool], prefix: str = "") -> S:
    """A section with stored values for the keys that it does not name, or names as auto. is_free:
    whether a key, given as a dotted path, never takes its stored value. prefix: path of the
    section, with a dot at the end."""
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
