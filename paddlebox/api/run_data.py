"""The data that a program gave a run, as files in its folder, so that the run can be continued and
all tools can read it:

RUN_DIR/data/slots.yaml                     the slots
RUN_DIR/data/train-<number>-<digest>.arrow  a pass each, numbered from 1
RUN_DIR/data/test-<digest>.arrow            the data to evaluate on

The digest is that of the table: data that is given again is neither written nor trained again.
Paths are absolute, so that tools can be started in any folder.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Format, Slots
from paddlebox.config.arguments import AnyConfig, as_config, as_path
from paddlebox.config.check import validate
from paddlebox.config.load import config_of, read_yaml
from paddlebox.config.slots import VALUES, complete
from paddlebox.errors import ConfigError, DataError
from paddlebox.store import run_config
from paddlebox.store.files import make_folder, write_durably
from paddlebox.store.record import VersionRecord

# What imports Paddle is imported inside of functions: first, the config must be known.

_NAME = re.compile(r"(?:train-\d+|test)-([0-9a-f]{16})\.arrow(?:\.tmp)?")
_EXAMPLE = "[{'name': 'click', 'type': 'label'}, {'name': 'user', 'type': 'sparse', 'hash': True}]"


class RunData:
    """The data of a run. config, slots: as `train` takes them. Raises: ConfigError.

    Attributes:
        config: the config, whose data.format, data.slots and data.train_files are those of the
            folder, and whose data.files_per_pass is 1 unless it names another.
        slots: the slots, complete as from `load_slots`.
    """

    def __init__(self, config: AnyConfig, run_dir: Path, slots: Any) -> None:
        self._run_dir, self._folder = run_dir, Path(os.path.abspath(run_dir)) / "data"
        own = self._folder / "slots.yaml"
        keys = {"format": Format.ARROW, "slots": str(own), "train_files": ("data",)}
        self.config, named = _with_keys(config, keys)
        for key in ("path_template", "stream"):
            if found := getattr(self.config.data, key):
                raise ConfigError(
                    f"data.{key}: expected none together with data, found {found!r}: take one of "
                    "them out"
                )
        given = slots if slots is not None else named
        self._slots = _as_given(given or self._earlier_slots())
        self.slots = complete(self._slots, "slots")

    def _earlier_slots(self) -> Slots | Path | None:
        """Those of the newest commit; before the first one, those of the last call."""
        record, own = run_config.record_of(self._run_dir), self._folder / "slots.yaml"
        if record is not None and record.config:
            config, slots = run_config.of_version(self._run_dir, record)
            values = config.data.exact_values
            added = [] if values == "auto" else [name + VALUES for name in values]
            # The run adds them again.
            return slots.having({"slots": tuple(s for s in slots.slots if s.name not in added)})
        return own if own.is_file() else None

    def write(self, data: Any, test_data: Any, *, back_to: str, fresh: bool) -> Config:
        """Write the files that are not there yet. Returns the config with their names.

        Args:
            back_to: the version after which the data will be trained; "": the newest.
            fresh: move an existing run dir aside first.

        Raises: DataError for data that the slots cannot read; ConfigError if the run cannot be
        given further data; StoreError.
        """
        from paddlebox.api.tables import as_table, digest, write_arrow
        from paddlebox.training.opening import load_options
        from paddlebox.training.resume import move_aside
        from paddlebox.training.run_dir import make_run_dir

        options = load_options(self.config, self.slots.without_normalizers())
        schema, time = options.schema(), options.time
        rule = self.config.data.holdout
        held_out_by = [rule.named] if rule is not None and rule.named else []
        tables = {"data": as_table(data, "data", schema, time, more=held_out_by)}
        if test_data is not None:
            tables["test_data"] = as_table(test_data, "test_data", schema, time)
        for name, table in tables.items():
            if not table.num_rows:
                raise DataError(f"{name}: expected rows, found none")
        train, own = self._train_files(digest(tables["data"]), back_to, fresh)
        tests = [self._path(f"test-{digest(tables[name])}") for name in [*tables][1:]]
        if fresh:
            move_aside(self._run_dir)
        make_run_dir(self._run_dir)
        make_folder(str(self._folder))
        write_durably(str(self._folder / "slots.yaml"), self._slots.as_yaml().encode())
        for path, table in zip([own, *tests], tables.values(), strict=True):
            if not os.path.exists(path):
                write_arrow(table, Path(path))
        evaluated = tuple(tests) or self.config.data.test_files or test_files(self._run_dir)
        return self.config.having({"data.train_files": tuple(train), "data.test_files": evaluated})

    def remove_others(self, config: Config) -> None:
        """Remove the files that this config, which has just been trained, does not name: those of
        calls that failed, and data to evaluate on that were replaced."""
        kept = {*config.data.train_files, *config.data.test_files}
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name) and str(path) not in kept:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> str:
        return str(self._folder / f"{name}.arrow")

    def _train_files(self, own: str, back_to: str, fresh: bool) -> tuple[list[str], str]:
        """The files of all passes, and that of the data. own: the digest of the data."""
        record = None if fresh else run_config.record_of(self._run_dir, back_to)
        trained = _trained(record) if record is not None else []
        same = [file for file in trained if _digest_of(file) == own]
        for file in trained:
            if file not in same and not os.path.exists(file):
                raise ConfigError(
                    f"{self._run_dir}: expected {file}, on which it was trained, found no such "
                    "file: move the run dir back to its place, or start another one with "
                    f"source={str(self._run_dir)!r}"
                )
        if same:
            return trained, same[0]
        if trained and record is not None and not _may_grow(record):
            raise ConfigError(
                f"data: {self._run_dir} was trained with trainer.epochs or data.files_per_pass "
                "above 1; expected the same data, found other data, which would come between "
                "passes that are trained: choose another run_dir, or fresh=True"
            )
        file = self._path(f"train-{len(trained) + 1:05d}-{own}")
        return [*trained, file], file


def test_files(run_dir: Path) -> tuple[str, ...]:
    """The file of the data that a run was last given to evaluate on, if there is one."""
    found = Path(os.path.abspath(run_dir), "data").glob("test-*.arrow")
    return tuple(map(str, sorted(found, key=os.path.getmtime)[-1:]))


def _trained(record: VersionRecord) -> list[str]:
    """The files of the committed passes, as the commit names them."""
    skipped, passes = record.cursor.get("skipped", {}), int(record.cursor.get("pass", 0))
    if not passes or not record.config:
        return []
    named = record.config["config"]["data"]["train_files"]
    files = [file for file in named if file not in skipped]
    return files[:passes] if _may_grow(record) and all(map(_digest_of, files)) else files


def _may_grow(record: VersionRecord) -> bool:
    """Whether a further file is a further pass at the end."""
    config = record.config["config"]
    return bool(config["trainer"]["epochs"] == config["data"]["files_per_pass"] == 1)


def _digest_of(file: str) -> str:
    """ "": it is no file of this module."""
    found = _NAME.fullmatch(os.path.basename(file))
    return found[1] if found else ""


def _with_keys(config: AnyConfig, keys: Mapping[str, Any]) -> tuple[Config, str]:
    """The config with these keys of `data`, and its own data.slots; "": it has none."""
    if isinstance(config, Config):
        made = config.having({f"data.{key}": value for key, value in keys.items()})
        named = config.data.slots
    elif isinstance(config, Mapping):
        made, named = _of_fields(copy.deepcopy(dict(config)), keys, "config")
    elif isinstance(config, str | os.PathLike):
        path = as_path(config, "config")
        made, named = _of_fields(read_yaml(path), keys, str(path))
    else:
        return as_config(config), ""  # raises
    if "files_per_pass" not in made.data.model_fields_set:
        made = made.having({"data.files_per_pass": 1})
    return made, named


def _of_fields(fields: dict[str, Any], keys: Mapping[str, Any], source: str) -> tuple[Config, str]:
    data, named = fields.get("data"), ""
    if data is None or isinstance(data, Mapping):
        named = str((data or {}).get("slots") or "")
        fields["data"] = {**(data or {}), **keys}
    return config_of(fields, (), source), named  # an error if data is no section


def _as_given(slots: Any) -> Slots:
    """The slots as slots.yaml holds them."""
    if not slots:
        raise ConfigError(f"slots: expected the slots of the data, such as {_EXAMPLE}, found none")
    if isinstance(slots, Slots):
        return slots.without_intercept()
    if isinstance(slots, Mapping):
        return validate(Slots, copy.deepcopy(dict(slots)), "slots")
    if isinstance(slots, Sequence) and not isinstance(slots, str):
        return validate(Slots, {"slots": copy.deepcopy(list(slots))}, "slots")
    path = as_path(slots, "slots")
    return validate(Slots, read_yaml(path), str(path))
