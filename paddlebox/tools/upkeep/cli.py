"""The command line of tools/store.py."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlebox import _native
from paddlebox.config.dates import date_of, day_of
from paddlebox.config.table import LifeConfig
from paddlebox.errors import ConfigError, PaddleBoxError, StoreError
from paddlebox.store import copies, names
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.files import table_folder
from paddlebox.store.manifest import Manifest
from paddlebox.store.one_rank import ALL_KEYS, key_ranges
from paddlebox.store.rank_stores import rank_versions, stores_beside, sum_of_digests
from paddlebox.store.versions import find_version
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.life import life
from paddlebox.tools.upkeep.repair import repair
from paddlebox.tools.upkeep.store_files import newest, reading, store_folder, table_of
from paddlebox.tools.upkeep.values import feasigns_of
from paddlebox.tools.upkeep.verify import verify

core = _native.core
SOUND, DAMAGED, UNUSABLE = 0, 1, 2  # exit codes


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 where damage was found; 2 where the store cannot be used."""
    arguments = _parser().parse_args(argv)
    try:
        if "store" not in arguments:  # `restore` makes one
            return _restore(arguments)
        return _run(store_folder(arguments.store), arguments)
    except (PaddleBoxError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return UNUSABLE


def _run(store: Path, arguments: argparse.Namespace) -> int:
    stores = [store] if arguments.store == store else stores_beside(store)
    if len(stores) == 1 or arguments.run is _dump:
        return int(arguments.run(store, arguments))
    # A run dir of several ranks: the store of each, at the version of one pass.
    chosen: dict[Path, int] = {}
    wanted = getattr(arguments, "version", None)
    if wanted is not None:
        with Manifest.open_reader(store) as manifest:
            first = find_version(manifest, str(wanted))
        chosen = {folder: record.version for folder, record in rank_versions(store, first)}
    codes = []
    arguments.told = []
    for rank, (folder, own) in enumerate(zip(stores, key_ranges(len(stores)), strict=True)):
        of_rank = argparse.Namespace(**{**vars(arguments), "key_range": own})
        has_name = wanted in [named.name for named in checkpoints(str(folder))]
        if folder in chosen and not has_name:  # a copy is called by the name
            number = chosen[folder]
            of_rank.version = str(number) if isinstance(wanted, str) else number
        if rank and "uri" in arguments:
            of_rank.uri = f"{arguments.uri.rstrip('/')}/ranks/{rank}"
        codes.append(int(arguments.run(folder, of_rank)))
    values = [value for value, _ in arguments.told]
    lines = [
        line
        for rank, (_, of_rank) in enumerate(arguments.told)
        for line in (f"rank {rank}: {stores[rank]}", *(f"  {text}" for text in of_rank))
    ]
    if arguments.run is _digest:
        whole = sum_of_digests([value["sparse_digest"] for value in values])
        lines.append(f"all ranks: sparse_digest {whole}")
        values.append({"ranks": len(stores), "sparse_digest": whole})
    print(json.dumps(values, indent=1) if arguments.json else "\n".join(lines))
    return max(codes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/store.py", description="Looks into a store, checks it, and mends it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[Path, argparse.Namespace], int], about: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("store", type=Path, help="a store's folder, or a run dir")
        command.add_argument("--json", action="store_true", help="one JSON object instead of text")
        command.set_defaults(run=run)
        return command

    add("stat", _stat, "Versions, rows, bytes and who reads.")

    def add_version(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--version", type=int, metavar="N", help="a kept version; default: the newest"
        )

    add_version(add("digest", _digest, "Digests of all rows and of the dense state."))
    add("verify", _verify, "Checks every checksum, key and reference; exit code 1 on damage.")
    command = add("lookup", _lookup, "The rows of feasigns.")
    command.add_argument("values", nargs="+", metavar="FEASIGN", help="or, with --slot, a value")
    command.add_argument("--slot", metavar="NAME", help="values of this slot, as in the data")
    add_version(command)
    command = add("dump", _dump, "All rows as Parquet.")
    command.add_argument("--out", type=Path, required=True, metavar="FILE.parquet")
    command.add_argument("--slot", type=int, help="only rows of this slot (its index)")
    add_version(command)
    command = add("life", _life, "Life events, and what a day's end or a save would do now.")
    command.add_argument("--date", type=_day, metavar="YYYYMMDD", help="default: the version's day")
    for name, kind in _SETTINGS.items():
        command.add_argument(
            f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"try another {name}"
        )
    add_version(command)
    command = add("compact", _compact, "Merges the segments that are due.")
    command.add_argument("--full", action="store_true", help="until no two segments overlap")
    command = add(
        "repair", _repair, "Makes what is damaged anew, or drops it. Without --yes it says what."
    )
    command.add_argument("--yes", action="store_true", help="do it")
    add("migrate", _migrate, "Rewrites segments of older formats.")
    command = add("name", _name, "Names a version, which is kept until it is unnamed.")
    command.add_argument("version", metavar="VERSION", help="number, YYYYMMDD or YYYYMMDD/PASS")
    command.add_argument("name", metavar="NAME")
    command = add("unname", _unname, "Takes a name back.")
    command.add_argument("name", metavar="NAME")
    command = add("copy", _copy, "Copies a version: only files that are not there yet.")
    command.add_argument("uri", metavar="URI", help="a folder, hdfs://, s3://, gs://")
    command.add_argument("--version", metavar="VERSION", help="also a name; default: the newest")
    about = "Makes RUN_DIR/store of a copied version."
    command = commands.add_parser("restore", help=about, description=about)
    command.add_argument("uri", metavar="URI", help="that versions were copied to")
    command.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    command.add_argument("--version", default="", metavar="LABEL", help="default: the newest")
    command.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


# Settings that `life` can be tried with. They stay as they are in the store.
_SETTINGS: dict[str, Callable[[str], int | float]] = {
    name: int if field.annotation is int else float
    for name, field in LifeConfig.model_fields.items()
    if field.annotation in (int, float)
}


def _day(text: str) -> int:
    try:
        return day_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _feasign(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = 0
    if not 0 < value < 1 << 64:
        raise ConfigError(
            f"{text}: a feasign is 1 to 2^64 - 1; with --slot NAME, what stands in the data is "
            "looked up"
        )
    return value


def _print(arguments: argparse.Namespace, value: Any, lines: Sequence[str]) -> None:
    if "told" in arguments:  # of one of several ranks
        arguments.told.append((value, lines))
        return
    print(json.dumps(value, indent=1) if arguments.json else "\n".join(lines))


def _table(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows as aligned columns, the first one left and the others right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]


def _stat(folder: Path, arguments: argparse.Namespace) -> int:
    s = report.stat(folder)
    rows = [
        (
            "live rows",
            f"{s['live_rows']:,}",
            f"deleted ones too until a merge; {s['stored_rows']:,} stored, old copies included",
        ),
        ("segments", f"{s['segments']:,}", f"at most {s['depth']} over one key"),
        (
            "stored bytes",
            f"{s['stored_bytes']:,}",
            f"{s['space_ratio']:.2f} times the live rows",
        ),
        ("memory bytes", f"{s['memory_bytes']:,}", "of filters and fences when it is open"),
        ("store bytes", f"{s['used_bytes']:,}", "all files, every kept version"),
        ("free bytes", f"{s['free_bytes']:,}", "on its disk"),
        *(
            (f"written, {kind}", f"{count:,}", "bytes of segments since it began")
            for kind, count in s["bytes_written"].items()
        ),
        *(
            (f"written {day}", f"{count:,}", "bytes on that day (UTC)")
            for day, count in list(s["bytes_written_by_day"].items())[-7:]
        ),
        ("life events", f"{s['life_events']:,}", "decays, shrinks and delta resets so far"),
    ]
    width = max(len(row[1]) for row in rows)
    lines = [
        f"{s['store']}: version {s['version']}, pass {s['pass_number']}, "
        f"{date_of(s['day']) if s['day'] else 'no date'}, committed {s['created_at']}",
        "",
        *(f"{name:<20} {value:>{width}}  {meaning}" for name, value, meaning in rows),
        "",
        *_table(
            [
                ("version", "kind", "pass", "live rows", "segments", "bytes alone", "committed"),
                *(
                    (
                        v["version"],
                        v["kind"],
                        v["pass_number"],
                        f"{v['live_rows']:,}",
                        v["segments"],
                        f"{v['bytes_kept_alone']:,}",
                        v["created_at"],
                    )
                    for v in s["versions"]
                ),
            ]
        ),
        "",
        *(f"version {c['version']} is named {c['name']}" for c in s["names"]),
        *(f"process {h['pid']} reads version {h['version']}" for h in s["leases"]),
    ]
    _print(arguments, s, lines)
    return SOUND


def _digest(folder: Path, arguments: argparse.Namespace) -> int:
    value = report.digest(folder, arguments.version)
    _print(arguments, value, [f"{name} {text}" for name, text in value.items()])
    return SOUND


def _verify(folder: Path, arguments: argparse.Namespace) -> int:
    with tqdm(unit=" segments", leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = verify(folder, progress)
    lines = [
        *(f"damaged: {damage.message}" for damage in found.damage),
        *(f"unreferenced: {name}" for name in found.unreferenced),
        f"{len(found.versions)} versions, {found.segments} segments, {found.bytes:,} bytes read: "
        + (f"{len(found.damage)} damaged" if found.damage else "all sound"),
    ]
    _print(arguments, found.as_dict(), lines)
    return DAMAGED if found.damage else SOUND


def _lookup(folder: Path, arguments: argparse.Namespace) -> int:
    if arguments.slot is None:
        feasigns = [_feasign(text) for text in arguments.values]
    else:
        with reading(folder) as manifest:
            feasigns = feasigns_of(newest(manifest), arguments.slot, arguments.values)
    low, high = getattr(arguments, "key_range", ALL_KEYS)
    feasigns = [one for one in feasigns if low <= core.mix(one) <= high]
    found = report.lookup(folder, feasigns, arguments.version)
    lines = []
    for entry in found:
        lines.append(f"feasign {entry['feasign']} (key {entry['key']})")
        if entry["row"] is None:
            deleted = " (deleted by a life event; copies are left)" * bool(entry["copies"])
            lines.append(f"  no row{deleted}")
        else:
            lines += [f"  {name:<14} {value}" for name, value in entry["row"].items()]
        lines += [f"  copy in {c['file']}, block {c['block']}" for c in entry["copies"]]
    _print(arguments, found, lines)
    return SOUND


def _dump(folder: Path, arguments: argparse.Namespace) -> int:
    others: list[tuple[Path, int]] = []
    version = arguments.version
    if arguments.store != folder:
        (_, first), *of_ranks = rank_versions(folder, version)
        version = first.version
        others = [(store, record.version) for store, record in of_ranks]
    rows = report.dump(folder, arguments.out, version, arguments.slot, others)
    _print(
        arguments, {"rows": rows, "file": str(arguments.out)}, [f"{rows:,} rows in {arguments.out}"]
    )
    return SOUND


def _life(folder: Path, arguments: argparse.Namespace) -> int:
    tried = {name: getattr(arguments, name) for name in _SETTINGS}
    found = life(
        folder,
        version=arguments.version,
        day=arguments.date,
        settings={name: value for name, value in tried.items() if value is not None},
    )
    rows, s, gone = found["rows"], found["settings"], found["deleted_by_day_end"]

    def share(count: int) -> str:
        return f"{count:,} of {rows:,} rows ({count / max(rows, 1):.1%})"

    lines = [
        f"{found['store']}: version {found['version']}, {found['date'] or 'no date'}",
        "",
        f"a day's end now deletes  {share(gone['rows'])}: {gone['by_score']:,} with a score below "
        f"{s['delete_threshold']:g} after a decay of {s['show_click_decay_rate']:g}, "
        f"{gone['by_unseen_days']:,} unseen for more than {s['delete_after_unseen_days']} days",
        f"a base now holds         {share(found['kept_by']['base'])}: score at least "
        f"{s['base_threshold']:g}, unseen for at most {s['delta_keep_days']} days",
        f"a delta now holds        {share(found['kept_by']['delta'])}: and delta_score at least "
        f"{s['delta_threshold']:g}",
    ]
    for name, bins in found["histograms"].items():
        table: list[Sequence[Any]] = [(f"{name} from", "rows", "rows below")]
        below = 0
        for entry in bins:
            table.append((f"{entry['from']:g}", f"{entry['rows']:,}", f"{below:,}"))
            below += entry["rows"]
        lines += ["", *_table(table)]
    events = [("event", "kind", "date", "what"), *(_event(event) for event in found["events"])]
    lines += ["", *(_table(events) if found["events"] else ["no life events so far"])]
    _print(arguments, found, lines)
    return SOUND


def _event(event: dict[str, Any]) -> tuple[Any, ...]:
    limits = f"score {event['min_score']:g}, unseen days {event['max_unseen_days']}"
    what = {
        "decay": f"by {event['decay']:g}",
        "shrink": limits,
        "delta_reset": f"{limits}, delta_score {event['min_delta_score']:g}",
    }
    return event["seq"], event["kind"], event["date"], what[event["kind"]]


def _compact(folder: Path, arguments: argparse.Namespace) -> int:
    before = report.stat(folder)
    with Manifest.open_reader(folder) as manifest:
        record = newest(manifest)
    with table_of(folder, record, compaction=None, threads=2) as table:
        table.compact(full=arguments.full)
    return _changes(folder, before, arguments)


def _migrate(folder: Path, arguments: argparse.Namespace) -> int:
    before = report.stat(folder)
    with Manifest.open_reader(folder) as manifest:
        record = newest(manifest)
    with table_of(folder, record, compaction=None, threads=2) as table:
        table.rewrite_old_formats()
    return _changes(folder, before, arguments)


def _changes(folder: Path, before: dict[str, Any], arguments: argparse.Namespace) -> int:
    after = report.stat(folder)
    names = ["version", "segments", "stored_rows", "stored_bytes"]
    names += ["space_ratio", "depth", "formats"]
    value = {name: {"before": before[name], "after": after[name]} for name in names}
    rows = [("", "before", "after"), *((name, before[name], after[name]) for name in names)]
    _print(arguments, value, _table(rows))
    return SOUND


def _repair(folder: Path, arguments: argparse.Namespace) -> int:
    result = repair(folder, yes=arguments.yes)
    lines = []
    if result.manifest is not None:
        made = "made anew from its files" if result.done else "can be made anew from its files"
        lines.append(f"manifest: {result.manifest}: {made}")
    can = "made again" if result.done else "can be made again"
    lines += [f"{name}: {can} from its parity, nothing is lost" for name in result.rebuilt]
    lines += [f"no parity: {message}" for message in result.no_parity]
    for lost in result.lost:
        where = "all of it" if lost.block is None else f"block {lost.block}"
        lines.append(
            f"lost: {lost.file}, {where}: {lost.rows} rows of keys {lost.min_key:#018x} to "
            f"{lost.max_key:#018x}"
        )
        older = ", ".join(lost.older)
        lines.append(
            f"  older copies come back from {older}"
            if older
            else "  no older copies: these feasigns begin anew"
        )
    lines += [f"cannot be mended: {damage.message}" for damage in result.not_mended]
    damaged = bool(result.lost or result.not_mended or result.manifest or result.rebuilt)
    if not damaged:
        lines.append("nothing is damaged")
    elif result.done:
        lines.append(f"repaired as version {result.version}; damaged files are kept in damaged/")
    else:
        lines.append("nothing was changed: add --yes to repair")
    _print(arguments, result.as_dict(), lines)
    return DAMAGED if result.not_mended or (damaged and not result.done) else SOUND


def _name(folder: Path, arguments: argparse.Namespace) -> int:
    with Manifest.open_reader(folder) as manifest:
        version = find_version(manifest, arguments.version)
    names.name_version(str(folder), version, arguments.name)
    value = {"name": arguments.name, "version": version}
    _print(arguments, value, [f"version {version} is named {arguments.name}"])
    return SOUND


def _unname(folder: Path, arguments: argparse.Namespace) -> int:
    version = names.unname(str(folder), arguments.name)
    value = {"name": arguments.name, "version": version}
    _print(arguments, value, [f"version {version} has lost the name {arguments.name}"])
    return SOUND


def _copy(folder: Path, arguments: argparse.Namespace) -> int:
    with Manifest.open_reader(folder) as manifest:
        version = find_version(manifest, arguments.version) if arguments.version else None
        record = manifest.pin(version)
        if record is None:
            raise StoreError(f"{folder}: no version has been committed yet")
        named = {c.name for c in checkpoints(str(folder)) if c.version == record.version}
        label = arguments.version if arguments.version in named else copies.label_of(record)
        written = copies.copy_version(str(folder), record, arguments.uri, label)
    value = {"version": record.version, "label": label, "bytes": written}
    _print(arguments, value, [f"version {record.version} copied as {label}: {written:,} bytes"])
    return SOUND


def _restore(arguments: argparse.Namespace) -> int:
    record = copies.restore(arguments.uri, arguments.run_dir, arguments.version)
    store = arguments.run_dir / "store"
    others = [verify(store / table_folder("", table)) for table in record.tables]
    found = verify(store)
    found.damage += [damage for other in others for damage in other.damage]
    value = {"version": record.version, "pass": record.pass_number, **found.as_dict()}
    lines = [f"damaged: {damage.message}" for damage in found.damage]
    lines.append(f"{store}: version {record.version}, pass {record.pass_number}")
    _print(arguments, value, lines)
    return DAMAGED if found.damage else SOUND
