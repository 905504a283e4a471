"""Warm start: starts a new run with the rows and dense parameters of another (docs/warm_start.md).

What the two runs have in common is carried over; the rest is initialised as in a run that starts
from nothing. One commit writes all of it as version 1 of the new store.
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

INIT_FILE = "init.json"  # RUN_DIR/init.json: the source of the run, and what was carried over
# Prefix of Paddle's variables that hold the dense learning rate. It comes from the new config.
_RATE = "learning_rate_"
_DEFAULT = ""  # stands for the default table, whatever its name is
# Fields of a slot that determine the feasigns of its values.
_MEANING = ("hash", "bucket", "cross")
_DROPPED = -1


@dataclass(frozen=True)
class Source:
    """A run to start from."""

    run: Path  # its run dir
    version: int | None  # None: the newest
    config: Mapping[str, Any]  # its config.json
    slots: Slots


def find_source(text: str, run_dir: Path) -> Source:
    """Find the run that --init-from names. Writes nothing.

    Args:
        text: RUN or RUN@VERSION.
        run_dir: the run dir of the new run.

    Raises:
        StoreError: there is no such run or version, or its config.json cannot be read.
        ConfigError: the run is `run_dir` itself.
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
            f"--init-from {text}: {path} does not describe the run: {error!r}; the config.json "
            "of a run is needed to interpret its rows"
        ) from error
    return Source(folder, resolve_version(folder, name), config, slots)


def resolve_version(run: Path, name: str) -> int | None:
    """The version that a name, as --from takes it, stands for; None: the newest.

    Raises:
        StoreError: there is no such version.
    """
    if not name:
        return None
    with Manifest.open_reader(run / "store") as manifest:
        return find_version(manifest, name)


def write_slots(run_dir: Path, slots: Slots) -> None:
    """Write the slots of a run to its run dir, because the file data.slots may change later."""
    text = json.dumps(slots.model_dump(mode="json"), indent=1)
    write_durably(str(run_dir / SLOTS_FILE), text.encode())


def init_from(
    source: Source, config: Config, slots: Slots, tables: TableSet, runner: Runners, run_dir: Path
) -> dict[str, Any]:
    """Fill the empty store and the model of a new run from another run.

    Writes a report of what was carried, reset and dropped to run_dir/init.json. The default tables
    of the two runs correspond; other tables correspond by name. After an error nothing is
    committed.

    Args:
        source: the run to start from.
        config: the config of the new run.
        slots: its slots.
        tables: its open tables, without rows.
        runner: its programs.
        run_dir: its run dir.

    Returns: the report.

    Raises:
        StoreError: the source cannot be read.
        ConfigError: the rows have no meaning for this config.
        CorruptionError: the source is damaged.
        OutOfSpaceError: the new store does not fit on the disk.
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
    """Open the tables of the source for reading: name -> the table of each of its ranks.

    _DEFAULT is the name of the default table.
    """
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
    """What was carried over into one table."""

    imported: Imported
    parts: dict[str, str]  # what happened to each part of a row
    admission: bytes | None  # state of the admission filter; None: it starts empty
    counts: str  # what happened to the admission counts
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
    """The entries of the report about extra tables; empty if neither run has any."""
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
    """Check that a run that has versions was filled from this source.

    Raises:
        StoreError: it was filled from another source, or from none.
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
            f"--init-from {source.run}: its data.key_space is {found}, the config's {wanted}: "
            f"feasigns of one have no meaning in the other; set data.key_space: {found}, or start "
            "without --init-from"
        )


def _per_slot(config: Config) -> bool:
    return config.data.key_space is KeySpace.PER_SLOT


@dataclass(frozen=True)
class _SlotMap:
    """Maps the sparse slots of the source to those of the new run."""

    indices: list[int]  # by slot of the source: its index in the new run; -1: dropped
    keys: list[tuple[int, int]]  # by slot of the source: its number in feasigns, old and new
    kept: list[str]
    dropped: list[str]
    changed: list[str]  # kept, but their values now become other feasigns
    tables: list[tuple[str, str]]  # by slot of the source: its table, old and new; "": dropped
    moved_tables: list[str]  # kept, but now in another table, so their rows are not carried

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
        """The map restricted to slots that belong to this table in both runs."""
        indices = [
            to if of_both == (table, table) else -1
            for to, of_both in zip(self.indices, self.tables, strict=True)
        ]
        return replace(self, indices=indices)


def _table_of(slot: Slot, first: Any) -> str:
    """The name of a slot's table, or _DEFAULT. first: name of the default table."""
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
        log.warning(
            "init: slots whose values become other feasigns than before: %s", ", ".join(changed)
        )
    indices, keys = _places(old, new, _per_slot(config))
    tables = [
        (_table_of(slot, first), _table_of(new.sparse[to], config.table.name))
        if to != _DROPPED
        else ("", "")
        for slot, to in zip(old.sparse, indices, strict=True)
    ]
    moved = [slot.name for slot, (a, b) in zip(old.sparse, tables, strict=True) if a != b]
    if moved:
        log.warning(
            "init: slots that moved to another table start without rows: %s", ", ".join(moved)
        )
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
    """`indices` and `keys` of a `_SlotMap`.

    With key_space per_slot, a feasign contains the number of a slot, the owner of its row. Rows
    follow their owner, so that no two rows get the same feasign. If a slot shared no ids before and
    now shares those of another slot, its rows could collide with rows of that slot, so they are
    dropped.
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
    """The counts of feasigns without a row; None if the new filter cannot take them."""
    before, after = old[0].config.admission, new.config.admission
    if before.min_count == 1 or after.min_count == 1 or before.filter_bytes != after.filter_bytes:
        return None
    if slots.moved:
        return None  # with key_space per_slot, the counted feasigns are different ones now
    counts = [np.frombuffer(table.native.admission_state(), np.uint8) for table in old]
    return counts_of(counts, key_range).tobytes()


def _what_of_counts(new: TieredTable, admission: bytes | None) -> str:
    if new.config.admission.min_count == 1:
        return "none"
    return "carried" if admission is not None else "reset"


def _rows(imported: Sequence[Imported], slots: Slots) -> dict[str, Any]:
    """Counts of rows over all tables that were carried."""
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
    """What happened to each part of a row."""

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
            parts[f"{name}_w"] = f"reinitialised ({widths[0]} -> {widths[1]} floats)"
    return parts


@dataclass
class CarriedDense:
    """The dense state of a new run, and where its tensors come from."""

    state: dict[str, np.ndarray]
    carried: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # (name, shape)
    # (name, shape, why)
    fresh: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    dropped: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """The section "dense" of init.json."""
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
    """Combine the dense state of a trained model with that of a new one.

    A parameter is carried if its name, shape and dtype are equal. The optimizer's state of a
    parameter, whose name begins with the parameter's, is carried with it if the optimizer is the
    same.

    Args:
        old: the state of the source.
        fresh: the initial state of the new model.
        same_optimizer: whether both runs use the same type of optimizer.
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
    """The parameter to which an optimizer state of this name belongs, or None.

    It is the longest other name that this name begins with.
    """
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
    """The report in init.json as lines of text."""
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
