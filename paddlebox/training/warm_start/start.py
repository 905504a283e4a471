"""Fills a new run with the rows and dense parameters of another one (docs/warm_start.md).

What the two runs have in common is carried over; the rest is initialised as in a run that starts
from nothing. One commit writes all of it as version 1 of the new store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import Config, Slots, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store.files import write_durably
from paddlebox.store.group import Group
from paddlebox.store.import_rows import FirstVersion, Imported, commit_initial, import_rows
from paddlebox.store.life import last_seq
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.training.config_changes import description
from paddlebox.training.program import RATE
from paddlebox.training.runner import Runners
from paddlebox.training.warm_start.source import (
    DEFAULT_TABLE,
    INIT_FILE,
    SlotMap,
    Source,
    is_per_slot,
    map_slots,
    open_tables,
    trained_by,
)

log = logging.getLogger("paddlebox")


@dataclass
class CarriedDense:
    """The dense state of a new run, and the section "dense" of init.json: the tensors that were
    carried, are fresh, or were dropped."""

    state: dict[str, np.ndarray]
    report: dict[str, list[dict[str, Any]]]


def carry_dense(
    old: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], same_optimizer: bool
) -> CarriedDense:
    """Combine the dense state of a trained model with that of a new one. A parameter is carried if
    its name, shape and dtype are equal; the optimizer's state of it, whose name begins with the
    parameter's, if the type of optimizer is equal too."""
    names = {*old, *fresh}
    out = CarriedDense(dict(fresh), {"carried": [], "fresh": [], "dropped": []})
    for name in sorted(names):
        owner = _owner(name, names)
        before, now = old.get(name), fresh.get(name)
        why = ""
        if name.startswith(RATE):  # it comes from the new config
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
        kind, array = ("dropped", before) if now is None else ("fresh", now)
        if not why and before is not None:
            kind, array, out.state[name] = "carried", before, before
        assert array is not None
        of_why = {"why": why} if why else {}
        out.report[kind].append({"name": name, "shape": list(array.shape), **of_why})
    return out


def _owner(name: str, names: set[str]) -> str | None:
    """The parameter to which an optimizer state of this name belongs, or None: the longest other
    name that this name begins with."""
    parts = name.split("_")
    prefixes = ("_".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    return next((prefix for prefix in prefixes if prefix in names), None)


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype


def count_rows(imported: Sequence[Imported], slots: Slots) -> dict[str, Any]:
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


def parts_of_rows(old: TableConfig, new: TableConfig) -> dict[str, str]:
    """What happened to each part of a row."""

    def state(name: str) -> str:
        rule = "embedx" if name == "expand" else name
        rules = [getattr(config, rule).rule.value for config in (old, new)]
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
    for name in {**dict.fromkeys(old.counts), **dict.fromkeys(new.counts)}:
        gone = "dropped" if name not in new.counts else "0"
        parts[f"count {name}"] = "carried" if name in old.counts and gone == "0" else gone
    return parts


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


_BLOCK = 64  # counters of the admission filter for consecutive keys


def init_from(
    source: Source, config: Config, slots: Slots, tables: TableSet, runner: Runners, run_dir: Path
) -> dict[str, Any]:
    """Fill the empty store and the model of a new run from another run. Returns a report of what
    was carried, reset and dropped, which it also writes to run_dir/init.json. The default tables of
    the two runs correspond, others by name. After an error nothing is committed.

    Raises: StoreError if the source cannot be read; ConfigError if the rows have no meaning for
    this config; CorruptionError; OutOfSpaceError.
    """
    _check_source(source, config)
    chosen = map_slots(source, config, slots)
    with open_tables(source) as old:
        first = old[DEFAULT_TABLE][0]
        assert first.head is not None
        log.info("init from %s, version %d", source.run, first.head.version)
        carried: dict[str, _Carried] = {}
        of_each: list[FirstVersion] = []
        for number, table in enumerate(tables.members):
            name = table.name if number else DEFAULT_TABLE
            if name in old:
                within = chosen.within(name)
                carried[name] = _carry(old[name], table, within, config, tables.world)
            of_each.append(carried[name].version if name in old else FirstVersion())
        same_optimizer = source.config["optimizer"]["type"] == config.optimizer.type.value
        dense = carry_dense(first.load_dense(), runner.dense_state(), same_optimizer)
        report = {
            "run": str(source.run),
            "version": first.head.version,
            "rows": count_rows([one.imported for one in carried.values()], source.slots),
            "slots": chosen.report(slots),
            "parts": carried[DEFAULT_TABLE].parts,
            "admission_counts": carried[DEFAULT_TABLE].counts,
            **_of_tables(tables, old, carried, chosen.moved_tables),
            "dense": dense.report,
            "trained": trained_by(source.run, first.head.pass_number),
        }
        runner.load_dense_state(dense.state)
        write_durably(str(run_dir / INIT_FILE), json.dumps(report, indent=1).encode())
        cursor = {"init_from": [str(source.run), first.head.version], "ranks": tables.world.size}
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


def _check_source(source: Source, config: Config) -> None:
    for key, wanted, why in (
        ("key_space", config.data.key_space, "feasigns of one have no meaning in the other"),
        (
            "negative_rate",
            config.data.negative_rate,
            "the carried model has learned the odds of that rate",
        ),
    ):
        found = source.config["data"][key]
        if found != wanted:
            raise ConfigError(
                f"--init-from {source.run}: its data.{key} is {found}, the config's {wanted}: "
                f"{why}; set data.{key}: {found}, or start without --init-from"
            )


@dataclass(frozen=True)
class _Carried:
    """What was carried over into one table."""

    imported: Imported
    parts: dict[str, str]  # what happened to each part of a row
    counts: str  # what happened to the admission counts
    version: FirstVersion


def _carry(
    old: Sequence[TieredTable],
    new: TieredTable,
    slots: SlotMap,
    config: Config,
    world: Group,
) -> _Carried:
    key_range = world.key_range
    imported = import_rows(
        old,
        new,
        slots=slots.indices,
        keyed_by_slot=is_per_slot(config),
        key_slots=slots.keys,
        progress=_progress(_live_rows(old), world.heartbeat.rows("rows of another run")),
        key_range=key_range,
    )
    admission = _admission(old, new, slots, key_range)
    parts = parts_of_rows(old[0].config, new.config)
    counts = "none" if new.config.admission.min_count == 1 else "reset"
    counts = "carried" if admission is not None else counts
    events = max((table.events for table in old), key=last_seq)  # a rank may lack the last event
    version = FirstVersion(imported.segments, admission=admission, day=old[0].day, events=events)
    return _Carried(imported, parts, counts, version)


def _admission(
    old: Sequence[TieredTable], new: TieredTable, slots: SlotMap, key_range: tuple[int, int]
) -> bytes | None:
    """The counts of feasigns without a row; None if the new filter cannot take them."""
    before, after = old[0].config.admission, new.config.admission
    if before.min_count == 1 or after.min_count == 1 or before.filter_bytes != after.filter_bytes:
        return None
    if slots.moved:
        return None  # with key_space per_slot, the counted feasigns are different ones now
    counts = [np.frombuffer(table.native.admission_state(), np.uint8) for table in old]
    return counts_of(counts, key_range).tobytes()


def counts_of(counts: Sequence[np.ndarray], own: tuple[int, int]) -> np.ndarray:
    """The admission filter of a key range. Each old rank counted only its own keys; where they
    share a block, counts are added. A block at the end of the range also counts keys outside of it.
    Estimates may be too high, never too low."""
    size = counts[0].size
    begin, end = (key * (size // _BLOCK) >> 64 for key in own)
    cut = slice(begin * _BLOCK, (end + 1) * _BLOCK)
    merged = np.zeros(size, np.uint8)
    total = sum(one[cut].astype(np.uint32) for one in counts)
    merged[cut] = np.minimum(total, np.iinfo(np.uint8).max)
    return merged


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
        if name != DEFAULT_TABLE
    }
    return {
        "tables": {
            "carried": kept,
            "new": [name for name in further if name not in kept],
            "dropped": gone,
            "slots_moved": list(moved),
        }
    }


def _progress(rows: int, beat: Callable[[int], None]) -> Callable[[int], None]:
    step, said = max(1 << 20, rows // 20), 0

    def tell(done: int) -> None:
        nonlocal said
        beat(done)
        if done - said >= step:
            said = done
            log.info("init: %d of %d rows", done, rows)

    return tell
