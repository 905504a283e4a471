"""Warm start: a new run from the rows and dense parameters of another (docs/warm_start.md).

What the two have in common is carried, the rest is as in a run that starts from nothing. All of it
becomes version 1 of the new store, in one commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import heartbeat
from paddlebox.config import Config, KeySpace, Slot, Slots, TableConfig, load_slots
from paddlebox.config.check import validate
from paddlebox.errors import ConfigError, StoreError
from paddlebox.ranks.reshard import counts_of
from paddlebox.store.files import table_folder, write_durably
from paddlebox.store.first_version import FirstVersion, commit_initial
from paddlebox.store.import_rows import Imported, import_rows, open_source
from paddlebox.store.manifest import Manifest
from paddlebox.store.rank_stores import rank_versions
from paddlebox.store.run_config import SLOTS_FILE
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.versions import find_version
from paddlebox.train.phases import Runners
from paddlebox.train.resume import description

log = logging.getLogger("paddlebox")

INIT_FILE = "init.json"  # RUN/init.json: what a filled run was filled from
# Paddle's variable of the dense optimizer's rate. It is the new config's, whatever was trained.
_RATE = "learning_rate_"
_DEFAULT = ""  # the default table, whatever its name
# What decides which feasign a value of a slot becomes.
_MEANING = ("hash", "bucket", "cross")
_DROPPED = -1


@dataclass(frozen=True)
class Source:
    """A run to start from."""

    run: Path
    version: int | None  # None: the newest
    config: Mapping[str, Any]  # of the run, as it was written down
    slots: Slots


def find_source(text: str, run_dir: Path) -> Source:
    """RUN or RUN@VERSION, checked before anything is written.

    Raises: StoreError when there is no such run; ConfigError when it is run_dir itself.
    """
    run, mark, name = text.rpartition("@")
    if not mark or Path(text).is_dir():
        run, name = text, ""
    folder = Path(run)
    if not (folder / "store").is_dir():
        raise StoreError(
            f"--init-from {text}: {folder} holds no store; expected a run's folder: give the "
            "--run-dir of a training run"
        )
    if folder.resolve() == run_dir.resolve():
        raise ConfigError(
            f"--init-from {text}: expected another run, found that it is the --run-dir itself: "
            "choose another --run-dir"
        )
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        slots_file = folder / SLOTS_FILE
        if slots_file.is_file():
            slots = validate(Slots, json.loads(slots_file.read_text()), str(slots_file))
        else:
            slots = load_slots(config["data"]["slots"])
        config["data"]["key_space"], config["optimizer"]["type"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"--init-from {text}: {path} does not say what the run was: {error!r}; a run's "
            "config.json is needed to understand its rows"
        ) from error
    return Source(folder, resolve_version(folder, name), config, slots)


def resolve_version(run: Path, name: str) -> int | None:
    """The version that a text names, as --from does; None: the newest.

    Raises: StoreError.
    """
    if not name:
        return None
    with Manifest.open_reader(run / "store") as manifest:
        return find_version(manifest, name)


def write_slots(run_dir: Path, slots: Slots) -> None:
    """Keeps the slots of a run beside its config, whose file of slots may change later."""
    text = json.dumps(slots.model_dump(mode="json"), indent=1)
    write_durably(str(run_dir / SLOTS_FILE), text.encode())


def init_from(
    source: Source, config: Config, slots: Slots, tables: TableSet, runner: Runners, run_dir: Path
) -> dict[str, Any]:
    """Fills the new run's empty store, and its model, and says in run_dir/init.json what was
    carried, reset and dropped. The default tables belong together, others by name.

    Raises: StoreError when the source cannot be read;
        CorruptionError; OutOfSpaceError; ConfigError when the rows mean nothing to this config.
        Nothing is committed then.
    """
    _check_keys(source, config)
    chosen = _map_slots(source, config, slots)
    with _opened(source) as old:
        first = old[_DEFAULT][0]
        assert first.head is not None
        log.info("init from %s, version %d", source.run, first.head.version)
        carried: dict[str, _Carried] = {}
        of_each: list[FirstVersion] = []
        for number, table in enumerate(tables.members):
            name = table.name if number else _DEFAULT
            if name in old:
                key_range = tables.peers.key_range
                one = _carry(old[name], table, chosen.within(name), config, key_range)
                carried[name] = one
            of_each.append(carried[name].first_version() if name in old else FirstVersion())
        same_optimizer = source.config["optimizer"]["type"] == config.optimizer.type.value
        dense = carry_dense(first.load_dense(), runner.dense_state(), same_optimizer)
        report = {
            "run": str(source.run),
            "version": first.head.version,
            "rows": _rows([one.imported for one in carried.values()], source.slots),
            "slots": chosen.report(slots),
            "parts": carried[_DEFAULT].parts,
            "admission_counts": carried[_DEFAULT].counts,
            **_of_tables(tables, old, carried, chosen.moved_tables),
            "dense": dense.report(),
        }
        runner.load_dense_state(dense.state)
        write_durably(str(run_dir / INIT_FILE), json.dumps(report, indent=1).encode())
        cursor = {"init_from": [str(source.run), first.head.version], "ranks": tables.peers.ranks}
        of_each[0] = replace(
            of_each[0],
            dense=dense.state,
            cursor={"pass": 0, "epoch": 0, **cursor},
            config_hash=config.fingerprint(),
            config=description(config, slots),
        )
        commit_initial(tables, of_each)
    for line in format_report(report):
        log.info("init: %s", line)
    return report


@contextmanager
def _opened(source: Source) -> Iterator[dict[str, list[TieredTable]]]:
    """The tables of the source by name, to read, of each of its ranks; _DEFAULT is the default
    one."""
    tables: dict[str, list[TieredTable]] = {}
    with ExitStack() as opened:
        for store, record in rank_versions(source.run / "store", source.version):
            stores = {_DEFAULT: (store, record.version)} | {
                name: (Path(table_folder(str(store), name)), version)
                for name, version in record.tables.items()
            }
            for name, (folder, version) in stores.items():
                tables.setdefault(name, []).append(
                    opened.enter_context(open_source(folder, version))
                )
        yield tables


@dataclass(frozen=True)
class _Carried:
    """What came of one table."""

    imported: Imported
    parts: dict[str, str]
    admission: bytes | None
    counts: str  # what became of them
    day: int
    events: list[dict[str, Any]]

    def first_version(self) -> FirstVersion:
        return FirstVersion(
            self.imported.segments, admission=self.admission, day=self.day, events=self.events
        )


def _carry(
    old: Sequence[TieredTable],
    new: TieredTable,
    slots: _SlotMap,
    config: Config,
    key_range: tuple[int, int],
) -> _Carried:
    imported = import_rows(
        old,
        new,
        slots=slots.indices,
        keyed_by_slot=_per_slot(config),
        key_slots=slots.keys,
        progress=_progress(_live_rows(old)),
        key_range=key_range,
    )
    admission = _admission(old, new, slots, key_range)
    parts = _parts(old[0].config, new.config)
    counts = _what_of_counts(new, admission)
    events = max((table.events for table in old), key=len)  # a rank may be one behind
    return _Carried(imported, parts, admission, counts, old[0].day, events)


def _live_rows(tables: Sequence[TieredTable]) -> int:
    return sum(table.head.live_rows for table in tables if table.head is not None)


def _of_tables(
    tables: TableSet,
    old: Mapping[str, Sequence[TieredTable]],
    carried: Mapping[str, _Carried],
    moved: Sequence[str],
) -> dict[str, Any]:
    """What the report says of further tables; nothing where neither run has any."""
    further = [table.name for table in tables.members[1:]]
    gone = {name: _live_rows(of) for name, of in old.items() if name not in carried}
    if not further and not gone:
        return {}
    kept = {
        name: {"rows": one.imported.rows, "parts": one.parts, "admission_counts": one.counts}
        for name, one in carried.items()
        if name != _DEFAULT
    }
    return {
        "tables": {
            "carried": kept,
            "new": [name for name in further if name not in kept],
            "dropped": gone,
            "slots_moved": list(moved),
        }
    }


def check_same_source(source: Source, run_dir: Path) -> None:
    """Of a run that has versions already: it may go on if it was filled from this source.

    Raises: StoreError when it was not.
    """
    try:
        report = json.loads((run_dir / INIT_FILE).read_text())
        run, version = report["run"], report["version"]
    except (OSError, ValueError, LookupError, TypeError):
        run, version = "", 0
    if (run, source.version or version) != (str(source.run), version):
        raise StoreError(
            f"{run_dir} holds a run already"
            + (f", which was filled from {run}@{version}" if run else "")
            + "; --init-from fills an empty one: choose another --run-dir"
        )
    log.info("init: %s was filled from %s@%d before", run_dir, run, version)


def _check_keys(source: Source, config: Config) -> None:
    found, wanted = source.config["data"]["key_space"], config.data.key_space.value
    if found != wanted:
        raise ConfigError(
            f"--init-from {source.run}: its data.key_space is {found}, the config's {wanted}: a "
            f"feasign of one means nothing in the other; set data.key_space: {found}, or start "
            "without --init-from"
        )


def _per_slot(config: Config) -> bool:
    return config.data.key_space is KeySpace.PER_SLOT


@dataclass(frozen=True)
class _SlotMap:
    indices: list[int]  # of the source's slots in the new run, -1: dropped
    keys: list[tuple[int, int]]  # numbers in feasigns of the source's slots, before and after
    kept: list[str]
    dropped: list[str]
    changed: list[str]  # kept, but their values become other feasigns
    tables: list[tuple[str, str]]  # that they belonged to and belong to; "" for those dropped
    moved_tables: list[str]  # kept, but of another table: their rows stay behind

    def report(self, slots: Slots) -> dict[str, list[str]]:
        added = [slot.name for slot in slots.sparse if slot.name not in self.kept]
        return {
            "kept": self.kept,
            "added": added,
            "dropped": self.dropped,
            "changed_meaning": self.changed,
        }

    @property
    def moved(self) -> bool:
        return any(new not in (-1, old) for old, new in enumerate(self.indices))

    def within(self, table: str) -> _SlotMap:
        """Of the slots that are of this table before and after."""
        indices = [
            to if of_both == (table, table) else -1
            for to, of_both in zip(self.indices, self.tables, strict=True)
        ]
        return replace(self, indices=indices)


def _table_of(slot: Slot, first: Any) -> str:
    """first: name of the default table."""
    return _DEFAULT if slot.table in (None, first) else str(slot.table)


def _map_slots(source: Source, config: Config, new: Slots) -> _SlotMap:
    old = source.slots
    first = source.config.get("table", {}).get("name")
    places = {slot.name: (index, slot) for index, slot in enumerate(new.sparse)}
    kept = [slot for slot in old.sparse if slot.name in places]
    meaning = (*_MEANING, "shares") if _per_slot(config) else _MEANING
    changed = [
        slot.name
        for slot in kept
        if any(getattr(slot, name) != getattr(places[slot.name][1], name) for name in meaning)
    ]
    if changed:
        log.warning("init: slots make other feasigns than they did: %s", ", ".join(changed))
    indices, keys = _places(old, new, _per_slot(config))
    tables = [
        (_table_of(slot, first), _table_of(new.sparse[to], config.table.name))
        if to != _DROPPED
        else ("", "")
        for slot, to in zip(old.sparse, indices, strict=True)
    ]
    moved = [slot.name for slot, (a, b) in zip(old.sparse, tables, strict=True) if a != b]
    if moved:
        log.warning("init: slots of another table leave their rows behind: %s", ", ".join(moved))
    return _SlotMap(
        indices,
        keys,
        [slot.name for slot in kept],
        [slot.name for slot in old.sparse if slot.name not in places],
        changed,
        tables,
        moved,
    )


def _places(old: Slots, new: Slots, per_slot: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """Of each sparse slot of the source: its place in the new run, or -1, and the numbers mixed
    into its feasigns before and after.

    With key_space per_slot a row belongs to the slot whose number is in its feasign, its owner. It
    follows its owner, so that no two rows get the same feasign. Rows of a slot that shared no ids
    and now shares those of another would: they stay behind.
    """
    place = {slot.name: index for index, slot in enumerate(new.sparse)}
    if not per_slot:
        return [place.get(slot.name, _DROPPED) for slot in old.sparse], []
    before, after = old.key_slots(), new.key_slots()
    indices, keys = [], []
    for slot, number in zip(old.sparse, before, strict=True):
        to = place.get(old.sparse[number].name, _DROPPED)
        if to != _DROPPED and after[to] != to:
            to = _DROPPED
        own = place.get(slot.name, _DROPPED)
        shared_still = own != _DROPPED and to != _DROPPED and after[own] == to
        indices.append(own if shared_still else to)
        keys.append((number, to if to != _DROPPED else number))
    return indices, keys


def _admission(
    old: Sequence[TieredTable], new: TieredTable, slots: _SlotMap, key_range: tuple[int, int]
) -> bytes | None:
    """The counts of feasigns without a row, where the new filter can hold them."""
    before, after = old[0].config.admission, new.config.admission
    if before.min_count == 1 or after.min_count == 1 or before.filter_bytes != after.filter_bytes:
        return None
    if slots.moved:
        return None  # with key_space per_slot they are counts of other keys
    counts = [np.frombuffer(table.native.admission_state(), np.uint8) for table in old]
    return counts_of(counts, key_range).tobytes()


def _what_of_counts(new: TieredTable, admission: bytes | None) -> str:
    if new.config.admission.min_count == 1:
        return "none"
    return "carried" if admission is not None else "start anew"


def _rows(imported: Sequence[Imported], slots: Slots) -> dict[str, Any]:
    """Of all tables that were carried."""
    names = [slot.name for slot in slots.sparse]
    sums = [sum(of_slot) for of_slot in zip(*(one.dropped for one in imported), strict=True)]
    dropped = {name: rows for name, rows in zip(names, sums, strict=True) if rows > 0}
    return {
        "carried": sum(one.rows for one in imported),
        "with_embedx": sum(one.with_embedx for one in imported),
        "dropped": sum(dropped.values()),
        "dropped_by_slot": dropped,
    }


def _parts(old: TableConfig, new: TableConfig) -> dict[str, str]:
    """What became of each part of a row."""

    def state(name: str) -> str:
        rules = [getattr(config, name).rule.value for config in (old, new)]
        return "carried" if rules[0] == rules[1] else f"reset ({rules[0]} -> {rules[1]})"

    parts = {"show, click, embed_w": "carried", "embed state": state("embed")}
    for name, widths in (
        ("embedx", (old.embedx_dim, new.embedx_dim)),
        ("expand", (old.expand_dim, new.expand_dim)),
    ):
        if widths == (0, 0):
            continue
        if widths[0] == widths[1]:
            parts[f"{name}_w"], parts[f"{name} state"] = "carried", state(name)
        elif widths[1] == 0:
            parts[f"{name}_w"] = "dropped"
        else:
            parts[f"{name}_w"] = f"made anew ({widths[0]} -> {widths[1]} floats)"
    return parts


@dataclass
class CarriedDense:
    """The dense state of a new run. `fresh` and `dropped`: (name, shape, why)."""

    state: dict[str, np.ndarray]
    carried: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    fresh: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    dropped: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        return {
            "carried": [{"name": name, "shape": list(shape)} for name, shape in self.carried],
            **{
                kind: [{"name": name, "shape": list(shape), "why": why} for name, shape, why in of]
                for kind, of in (("fresh", self.fresh), ("dropped", self.dropped))
            },
        }


def carry_dense(
    old: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], same_optimizer: bool
) -> CarriedDense:
    """Takes from `old` what `fresh`, the state of the new model, has a place for.

    A parameter is carried where name, shape and dtype are the same; the optimizer's state of a
    parameter (its name begins with the parameter's) goes with it where the optimizer is the same.
    """
    names = {*old, *fresh}
    out = CarriedDense(dict(fresh))
    for name in sorted(names):
        owner = _owner(name, names)
        before, now = old.get(name), fresh.get(name)
        why = ""
        if name.startswith(_RATE):
            why = "the config's"
        elif before is None:
            why = "not in the source"
        elif now is None:
            why = "not in the model"
        elif owner is not None and not same_optimizer:
            why = "of another optimizer"
        elif owner is not None and not _same(old.get(owner), fresh.get(owner)):
            why = f"{owner} is not carried"
        elif not _same(before, now):
            why = f"was {before.dtype} {list(before.shape)}"
        if not why:
            assert before is not None
            out.state[name] = before
            out.carried.append((name, before.shape))
        elif now is not None:
            out.fresh.append((name, now.shape, why))
        else:
            assert before is not None
            out.dropped.append((name, before.shape, why))
    return out


def _owner(name: str, names: set[str]) -> str | None:
    """The parameter whose optimizer state has this name: the longest that it begins with."""
    parts = name.split("_")
    prefixes = ("_".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    return next((prefix for prefix in prefixes if prefix in names), None)


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype


def _progress(rows: int) -> Any:
    step = max(1 << 20, rows // 20)
    said, beat = 0, heartbeat.rows("rows of another run")

    def tell(done: int) -> None:
        nonlocal said
        beat(done)
        if done - said >= step:
            said = done
            log.info("init: %d of %d rows", done, rows)

    return tell


def format_report(report: Mapping[str, Any]) -> list[str]:
    """init.json as lines to read."""
    rows, slots, dense = report["rows"], report["slots"], report["dense"]

    def listed(names: Sequence[str]) -> str:
        return ", ".join(names) if names else "none"

    lines = [
        f"rows: {rows['carried']} carried, {rows['dropped']} dropped",
        f"slots: {len(slots['kept'])} kept; added: {listed(slots['added'])}; "
        f"dropped: {listed(slots['dropped'])}",
        *(f"{part}: {what}" for part, what in report["parts"].items()),
        f"admission counts: {report['admission_counts']}",
        *_lines_of_tables(report.get("tables", {})),
        f"dense: {len(dense['carried'])} tensors carried",
    ]
    for kind in ("fresh", "dropped"):
        lines += [f"dense, {kind}: {t['name']} {t['shape']} ({t['why']})" for t in dense[kind]]
    return lines


def _lines_of_tables(tables: Mapping[str, Any]) -> list[str]:
    if not tables:
        return []
    lines = [
        f"table {name}: {of['rows']} rows carried; {part}: {what}"
        for name, of in tables["carried"].items()
        for part, what in of["parts"].items()
    ]
    lines += [f"table {name}: new, without rows" for name in tables["new"]]
    lines += [f"table {name}: dropped, {rows} rows" for name, rows in tables["dropped"].items()]
    moved = tables["slots_moved"]
    return lines + (
        [f"slots of another table, without their rows: {', '.join(moved)}"] * bool(moved)
    )
