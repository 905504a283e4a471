"""The commands of `paddlebox store`. Each returns a `Result`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlebox._native import core
from paddlebox.config import load_config
from paddlebox.config.dates import date_of
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store import checkpoints, copies, files
from paddlebox.store.checkpoints import find_version
from paddlebox.store.files import table_folder
from paddlebox.store.group import ALL_KEYS, key_ranges
from paddlebox.store.locks import KeptLock
from paddlebox.store.rank_stores import existing_stores, rank_versions, sum_of_digests
from paddlebox.store.tiered_table import stored_table
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.rows.export import Chosen, export_rows
from paddlebox.tools.rows.parts import PartFormat
from paddlebox.tools.rows.receive import into_existing, into_new
from paddlebox.tools.rows.sources import open_rows
from paddlebox.tools.terminal import aligned
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.cli import LIFE_SETTINGS
from paddlebox.tools.upkeep.erase import Erased, run_erase
from paddlebox.tools.upkeep.life import life
from paddlebox.tools.upkeep.report import feasigns_of, index_of, newest, record_of
from paddlebox.tools.upkeep.verify import repair, verify

SOUND, DAMAGED = 0, 1
#: What a command returns: the exit code, the result for --json, and the lines to print.
Result = tuple[int, Any, Sequence[str]]
Command = Callable[[Path, argparse.Namespace], Result]


def stat(folder: Path, _: argparse.Namespace) -> Result:
    s = report.stat(folder)
    deleted = "includes deleted ones until compaction"
    rows = [
        ("live rows", s["live_rows"], f"{deleted}; {s['stored_rows']:,} stored, with old copies"),
        ("segments", s["segments"], f"at most {s['depth']} over one key"),
        ("stored bytes", s["stored_bytes"], f"{s['space_ratio']:.2f} times the live rows"),
        ("memory bytes", s["memory_bytes"], "filters and fences of the open store"),
        ("store bytes", s["used_bytes"], "all files, with every kept version"),
        ("free bytes", s["free_bytes"], "on the disk"),
        *(
            (f"written, {kind}", count, "bytes of segments since the start")
            for kind, count in s["bytes_written"].items()
        ),
        *(
            (f"written {day}", count, "bytes on that day (UTC)")
            for day, count in list(s["bytes_written_by_day"].items())[-7:]
        ),
        ("life events", s["life_events"], "decays, shrinks and delta resets so far"),
    ]
    width = max(len(f"{count:,}") for _, count, _ in rows)
    versions: list[Sequence[Any]] = [
        ("version", "kind", "pass", "live rows", "segments", "bytes alone", "committed")
    ]
    for v in s["versions"]:
        rows_alone = f"{v['live_rows']:,}", v["segments"], f"{v['bytes_kept_alone']:,}"
        versions.append((v["version"], v["kind"], v["pass_number"], *rows_alone, v["created_at"]))
    lines = [
        f"{s['store']}: version {s['version']}, pass {s['pass_number']}, "
        f"{date_of(s['day']) if s['day'] else 'no date'}, committed {s['created_at']}",
        "",
        *(f"{name:<20} {count:>{width},}  {meaning}" for name, count, meaning in rows),
        "",
        *aligned(versions),
        "",
        *(f"version {c['version']} is named {c['name']}" for c in s["names"]),
        *(f"process {h['pid']} reads version {h['version']}" for h in s["leases"]),
    ]
    return SOUND, s, lines


def digest(folder: Path, arguments: argparse.Namespace) -> Result:
    value = report.digest(folder, arguments.version)
    return SOUND, value, [f"{name} {text}" for name, text in value.items()]


def verify_store(folder: Path, _: argparse.Namespace) -> Result:
    with _progress(" segments") as progress:
        findings = verify(folder, progress)
    lines = [
        *(f"damaged: {damage.message}" for damage in findings.damage),
        *(f"unreferenced: {name}" for name in findings.unreferenced),
        *([f"unprotected: {findings.unprotected}"] if findings.unprotected else []),
        f"{len(findings.versions)} versions, {findings.segments} segments, {findings.bytes:,} "
        f"bytes read: {f'{len(findings.damage)} damaged' if findings.damage else 'no damage'}",
    ]
    return (DAMAGED if findings.damage else SOUND), asdict(findings), lines


@contextmanager
def _progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a call that shows what is done of how many."""
    with tqdm(unit=unit, leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def lookup(folder: Path, arguments: argparse.Namespace) -> Result:
    if arguments.slot is None:
        feasigns = [_feasign(text) for text in arguments.values]
    else:
        feasigns = feasigns_of(record_of(folder, None), arguments.slot, arguments.values)
    low, high = getattr(arguments, "key_range", ALL_KEYS)
    feasigns = [feasign for feasign in feasigns if low <= core.mix(feasign) <= high]
    rows = report.lookup(folder, feasigns, arguments.version)
    lines = []
    for entry in rows:
        lines.append(f"feasign {entry['feasign']} (key {entry['key']})")
        if entry["row"] is None:
            deleted = " (deleted by a life event; copies remain)" * bool(entry["copies"])
            lines.append(f"  no row{deleted}")
        else:
            lines += [f"  {name:<14} {value}" for name, value in entry["row"].items()]
        lines += [f"  copy in {c['file']}, block {c['block']}" for c in entry["copies"]]
    return SOUND, rows, lines


def _feasign(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = 0
    if -(1 << 63) <= value < 0:  # as columns of signed integers hold a feasign
        return value + (1 << 64)
    if not 0 < value < 1 << 64:
        raise ConfigError(
            f"{text}: a feasign is 1 to 2^64 - 1; to look up a value of the data, add --slot NAME"
        )
    return value


def show_life(folder: Path, arguments: argparse.Namespace) -> Result:
    tried = {name: getattr(arguments, name) for name in LIFE_SETTINGS if name in arguments}
    figures = life(folder, version=arguments.version, day=arguments.date, settings=tried)
    rows, s, gone = figures["rows"], figures["settings"], figures["deleted_by_day_end"]

    def share(count: int) -> str:
        return f"{count:,} of {rows:,} rows ({count / max(rows, 1):.1%})"

    lines = [
        f"{figures['store']}: version {figures['version']}, {figures['date'] or 'no date'}",
        "",
        f"a day's end would delete {share(gone['rows'])}: {gone['by_score']:,} with a score below "
        f"{s['delete_threshold']:g} after a decay of {s['show_click_decay_rate']:g}, "
        f"{gone['by_unseen_days']:,} unseen for more than {s['delete_after_unseen_days']} days",
        f"a base would hold        {share(figures['kept_by']['base'])}: score at least "
        f"{s['base_threshold']:g}, unseen for at most {s['delta_keep_days']} days",
        f"a delta would hold       {share(figures['kept_by']['delta'])}: also delta_score at least "
        f"{s['delta_threshold']:g}",
    ]
    for name, bins in figures["histograms"].items():
        table: list[Sequence[Any]] = [(f"{name} from", "rows", "rows below")]
        below = 0
        for entry in bins:
            table.append((f"{entry['from']:g}", f"{entry['rows']:,}", f"{below:,}"))
            below += entry["rows"]
        lines += ["", *aligned(table)]
    events = [("event", "kind", "date", "what"), *(_event(event) for event in figures["events"])]
    lines += ["", *(aligned(events) if figures["events"] else ["no life events yet"])]
    return SOUND, figures, lines


def _event(event: dict[str, Any]) -> tuple[Any, ...]:
    if event["kind"] == "erase":
        keys, slot = f"{len(event['keys'])} keys to merge", f"slot {event['slot']}"
        what = "merged" if event["merged"] else slot if event["slot"] >= 0 else keys
    else:
        what = _WHAT[event["kind"]].format(**event)
    return event["seq"], event["kind"], event["date"], what


_LIMITS = "score {min_score:g}, unseen days {max_unseen_days}"
_WHAT = {
    "decay": "by {decay:g}",
    "shrink": _LIMITS,
    "delta_reset": f"{_LIMITS}, delta_score {{min_delta_score:g}}",
    "reset_rows": "weights of new rows",
    "evict": "score below {min_score:g}, or equal and key below {min_key:#018x}",
    "weight_decay": "embed_w by {embed_decay:g}, embedx by {embedx_decay:g}",
}


def compact(folder: Path, arguments: argparse.Namespace) -> Result:
    """Each pass that has a version keeps its newest one: how many passes stay is a setting of the
    run, not of the store."""
    with KeptLock(folder):
        before = report.stat(folder)
        with VersionStore.open_reader(folder) as manifest:
            record, passes = newest(manifest), len(manifest.numbers())
        table = stored_table(folder, record, compaction=None, threads=2, keep_versions=passes)
        with table:
            table.compactor.compact(full=arguments.full)
        after = report.stat(folder)
    shown = ["version", "segments", "stored_rows", "stored_bytes", "space_ratio", "depth"]
    value = {name: {"before": before[name], "after": after[name]} for name in shown}
    rows = [("", "before", "after"), *((name, before[name], after[name]) for name in shown)]
    return SOUND, value, aligned(rows)


def repair_store(folder: Path, arguments: argparse.Namespace) -> Result:
    result = repair(folder, yes=arguments.yes)
    lines = []
    if result.manifest is not None:
        rebuilt = "was rebuilt" if result.done else "can be rebuilt"
        lines.append(f"manifest: {result.manifest}: it {rebuilt} from its files")
    for lost in result.lost:
        where = "all of it" if lost.block is None else f"block {lost.block}"
        lines.append(
            f"lost: {lost.file}, {where}: {lost.rows} rows of keys {lost.min_key:#018x} to "
            f"{lost.max_key:#018x}"
        )
        if older := ", ".join(lost.older):
            lines.append(f"  older copies in {older} become current")
        else:
            lines.append("  no older copies: these feasigns start again from nothing")
    lines += [f"cannot be repaired: {damage.message}" for damage in result.not_mended]
    damaged = bool(result.lost or result.not_mended or result.manifest)
    if not damaged:
        lines.append("nothing is damaged")
    elif result.done:
        lines.append(f"repaired as version {result.version}; damaged files are kept in damaged/")
    else:
        lines.append("nothing was changed: add --yes to repair")
    left = result.not_mended or (damaged and not result.done)
    return (DAMAGED if left else SOUND), asdict(result), lines


def name_version(folder: Path, arguments: argparse.Namespace) -> Result:
    with VersionStore.open_reader(folder) as manifest:
        version = find_version(manifest, arguments.version)
    checkpoints.name_version(str(folder), version, arguments.name)
    value = {"name": arguments.name, "version": version}
    return SOUND, value, [f"version {version} is named {arguments.name}"]


def unname(folder: Path, arguments: argparse.Namespace) -> Result:
    version = checkpoints.unname(str(folder), arguments.name)
    value = {"name": arguments.name, "version": version}
    return SOUND, value, [f"version {version} is no longer named {arguments.name}"]


def copy(folder: Path, arguments: argparse.Namespace) -> Result:
    with VersionStore.open_reader(folder) as manifest:
        version = find_version(manifest, arguments.version) if arguments.version else None
        record = manifest.pin(version)
        if record is None:
            raise StoreError(f"{folder}: no version has been committed yet")
        named = files.checkpoints(str(folder)).get(arguments.version)
        label = arguments.version if named == record.version else copies.label_of(record)
        written = copies.copy_version(str(folder), record, arguments.uri, label)
    value = {"version": record.version, "label": label, "bytes": written}
    return SOUND, value, [f"version {record.version} copied as {label}: {written:,} bytes"]


def restore(arguments: argparse.Namespace) -> Result:
    record = copies.restore(arguments.uri, arguments.run_dir, arguments.version)
    store = arguments.run_dir / "store"
    others = [verify(store / table_folder("", table)) for table in record.tables]
    findings = verify(store)
    findings.damage += [damage for other in others for damage in other.damage]
    value = {"version": record.version, "pass": record.pass_number, **asdict(findings)}
    lines = [f"damaged: {damage.message}" for damage in findings.damage]
    lines.append(f"{store}: version {record.version}, pass {record.pass_number}")
    return (DAMAGED if findings.damage else SOUND), value, lines


def erase_rows(stores: Sequence[Path], arguments: argparse.Namespace) -> Result:
    record, values, slot = record_of(stores[0], None), arguments.values, arguments.slot
    if not values and slot is None:
        raise ConfigError("erase: expected feasigns, or --slot NAME")
    if values:
        found = map(_feasign, values) if slot is None else feasigns_of(record, slot, values)
        erased = Erased(tuple(found))
    elif not arguments.yes:
        raise ConfigError(
            f"erase --slot {slot}: would erase every row of the slot: add --yes, or give values"
        )
    else:
        erased = Erased(slot=index_of(record, slot))
    value, lines = run_erase(stores, erased, everywhere=arguments.everywhere)
    return SOUND, value, lines


def export(arguments: argparse.Namespace) -> Result:
    chosen = Chosen(arguments.slot, arguments.min_score, arguments.since)
    with _progress(" parts") as progress:
        exported = export_rows(
            arguments.run_dir,
            arguments.to,
            PartFormat(arguments.format),
            version=arguments.version,
            chosen=chosen,
            state=arguments.state,
            part_rows=arguments.part_rows,
            progress=progress,
        )
    gone = f", {exported.deleted:,} deletions" * (arguments.since is not None)
    line = (
        f"{exported.place}: version {exported.version}, {exported.rows:,} rows{gone} in "
        f"{exported.parts:,} files of {exported.bytes:,} bytes"
    )
    return SOUND, asdict(exported), [line]


def import_(arguments: argparse.Namespace) -> Result:
    source = open_rows(arguments.source)
    if arguments.config is not None:
        config = load_config(arguments.config, arguments.overrides)
        imported = into_new(config, arguments.run_dir, source)
    elif arguments.overrides:
        raise ConfigError("-o changes the config of -c, which is missing: add -c CONFIG")
    else:
        imported = into_existing(arguments.run_dir, source)
    refused = [f"refused: {rows:,} rows: {why}" for why, rows in imported.refused.items()]
    lines = [
        f"{imported.run}: version {imported.version} from {imported.source}",
        f"read {imported.read:,} rows: {imported.new:,} new, {imported.replaced:,} replaced, "
        f"{imported.clipped:,} clipped; deleted {imported.deleted:,}",
        *refused,
        f"dense: {len(imported.dense)} arrays",
    ]
    return SOUND, asdict(imported), lines


#: Commands that may create what they are given, or that know ranks themselves.
_OF_RUN: dict[str, Callable[[argparse.Namespace], Result]] = {
    "restore": restore,
    "export": export,
    "import": import_,
}

_COMMANDS: dict[str, Command] = {
    "stat": stat,
    "digest": digest,
    "verify": verify_store,
    "lookup": lookup,
    "life": show_life,
    "compact": compact,
    "repair": repair_store,
    "name": name_version,
    "unname": unname,
    "copy": copy,
}


def _store_folder(path: Path) -> Path:
    """The store at a path, which is the folder of a store or a run dir. Raises: StoreError."""
    for folder in (path, path / "store"):
        if (folder / "manifest").is_dir() or any(folder.glob("MANIFEST-*")):
            return folder
    raise StoreError(f"{path}: holds no store; expected a store's folder or a run dir")


def run(arguments: argparse.Namespace) -> Result:
    """Run a command. arguments: those of `store_parser`."""
    if arguments.command in _OF_RUN:
        return _OF_RUN[arguments.command](arguments)
    store = _store_folder(arguments.store)
    stores = [store] if arguments.store == store else existing_stores(store)
    if arguments.command == "erase":  # it is one for all ranks
        return erase_rows(existing_stores(store), arguments)
    command = _COMMANDS[arguments.command]
    if len(stores) == 1:
        return command(store, arguments)
    # For a run dir of several ranks, run the command on each store, at the version of one pass.
    chosen: dict[Path, int] = {}
    wanted = getattr(arguments, "version", None)
    if wanted is not None:
        with VersionStore.open_reader(store) as manifest:
            first = find_version(manifest, str(wanted))
        chosen = {folder: record.version for folder, record in rank_versions(store, first)}
    codes, values, lines = [], [], []
    for rank, (folder, own) in enumerate(zip(stores, key_ranges(len(stores)), strict=True)):
        of_rank = argparse.Namespace(**{**vars(arguments), "key_range": own})
        has_name = wanted in files.checkpoints(str(folder))
        if folder in chosen and not has_name:  # `copy` labels the copy with the name
            number = chosen[folder]
            of_rank.version = str(number) if isinstance(wanted, str) else number
        if "uri" in arguments:
            of_rank.uri = copies.of_rank(arguments.uri, rank)
        code, value, texts = command(folder, of_rank)
        codes.append(code)
        values.append(value)
        lines += [f"rank {rank}: {folder}", *(f"  {text}" for text in texts)]
    if command is digest:
        whole = sum_of_digests([value["sparse_digest"] for value in values])
        lines.append(f"all ranks: sparse_digest {whole}")
        values.append({"ranks": len(stores), "sparse_digest": whole})
    return max(codes), values, lines
