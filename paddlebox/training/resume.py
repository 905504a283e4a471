"""Resumes a run at its newest commit, or at an older one (docs/running.md).

The record of a version holds the configuration with the slots, and a cursor: the pass with its line
of metrics, the sizes of the pass's files, a hash of this pass and all earlier ones, and the files
that later passes leave out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Slots
from paddlebox.config.stored import FREE, PASSES, TUNED, within
from paddlebox.data.sources import FileState, changed, state_of
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store import run_config
from paddlebox.store.checkpoints import find_version
from paddlebox.store.files import write_durably
from paddlebox.store.locks import KeptLock
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training.config_changes import as_lines, description, differences, show_value
from paddlebox.training.pass_line import Lines
from paddlebox.training.plan import PlannedPass, choose_skipped, leave_out
from paddlebox.watch.watch import WINDOW_PASSES

log = logging.getLogger("paddlebox")

_OF_BUDGETS = re.compile(r"hbm\.budget_bytes|(table|extra_tables\..+)\.share")


@dataclass(frozen=True)
class ResumeRequest:
    """What to resume, and where."""

    run_dir: Path  # of this rank
    config: Config
    slots: Slots
    back_to: str = ""  # a version's number, YYYYMMDD, YYYYMMDD/PASS, or a name; empty: the newest
    skip: Sequence[str] = ()  # patterns of files to leave out from now on
    known: Mapping[str, int] = field(default_factory=dict)  # left out, as other ranks know


@dataclass
class ResumePoint:
    """The state of a run dir: which passes are committed and which are still to be trained."""

    plan: list[PlannedPass]  # all passes, without the files that are left out
    skipped: dict[str, int]  # files that are left out, as `leave_out` takes them
    record: VersionRecord | None = None  # the newest version; None: nothing is committed
    passes: int = 0  # number of passes of the plan that are committed
    lines: Lines = field(default_factory=Lines)  # of metrics.jsonl, one per committed pass
    line_missing: bool = False  # the last line had not been written when the run ended


def follow(last: str, date: str, files: Sequence[str]) -> str:
    """A hash of a pass and all earlier ones. last: the hash of the previous pass, "" if none."""
    return hashlib.sha256(json.dumps([last, date, list(files)]).encode()).hexdigest()[:32]


def hashes_of(passes: Sequence[PlannedPass]) -> list[str]:
    """For each pass, the hash of it and all earlier ones."""
    hashes = [""]
    for planned in passes:
        hashes.append(follow(hashes[-1], planned.date, planned.files))
    return hashes[1:]


def cursor(
    plan: str,
    line: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
    skipped: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The cursor of a commit: its position in the data.

    The sizes and sampled hashes of local files show whether a file was modified after it was read.
    Hashing all of the data would cost the feeder one core at full rate, for files that a resumed
    run does not read again.

    Args:
        plan: the hash of this pass and all earlier ones.
        line: the entries of the pass's line of metrics.jsonl that are known before the commit.
        more: more such entries, from before the pass was trained.
        skipped: the files that later passes leave out.
    """
    states = [state_of(file) for file in line["files"]]
    return {
        **{name: line[name] for name in ("pass", "epoch", "date", "event_time") if name in line},
        "plan": plan,
        "bytes": [state.bytes if state else None for state in states],
        "samples": [state.sample if state else None for state in states],
        # As text: a metric may be NaN, which a record cannot hold.
        "line": json.dumps({**line, **(more or {})}),
        **({"skipped": dict(skipped)} if skipped else {}),
    }


# Passes, and for each trained pass the hash of it and all earlier ones.
Known = tuple[list[PlannedPass], Sequence[str]]


def resume(
    request: ResumeRequest, known_from: Callable[[VersionRecord | None, Mapping[str, int]], Known]
) -> ResumePoint:
    """Find the resume point of a run dir, and go back to a version if asked to. A new version of
    kind "skip" stores the files to leave out. known_from: called with the version and these files.
    Returns the known passes, beginning with the first one of the run.

    Raises: ConfigError if values differ from the committed ones, which the error lists, or a
    pattern matches nothing; StoreLockedError if another process uses the store; StoreError if the
    version does not exist; CorruptionError.
    """
    run_dir, back_to, skip = request.run_dir, request.back_to, request.skip
    store = run_dir / "store"
    if not store.is_dir():
        if back_to:
            raise StoreError(f"{run_dir}: holds no store, so there is no {back_to} to go back to")
        known = {**_skipped_before(run_dir), **request.known}
        plan, _ = known_from(None, known)
        skipped = choose_skipped(plan, 0, known, skip)
        _keep_skipped(run_dir, skipped)
        _log_skipped(skipped)
        return ResumePoint(leave_out(plan, skipped), skipped, lines=_keep_lines(run_dir, 0))
    with VersionStore.open_writer(store) as manifest:
        record = manifest.version(find_version(manifest, back_to)) if back_to else manifest.newest()
        done = int(record.cursor.get("pass", 0)) if record is not None else 0
        own: dict[str, int] = (
            _skipped_before(run_dir) if record is None else record.cursor.get("skipped", {})
        )
        known = {**own, **request.known}
        plan, hashes = known_from(record, known)
        if record is not None:
            _check(request, record, (plan, hashes))
        skipped = choose_skipped(plan, done, known, skip)
        if record is not None:
            if back_to:
                gone = manifest.retention.go_back(record.version)
                log.info("%s: went back to version %d, dropped %s", store, record.version, gone)
            if skipped != own:
                record = record.following("skip", cursor={**record.cursor, "skipped": skipped})
                manifest.append(record)
        else:
            _keep_skipped(run_dir, skipped)
    _log_skipped(skipped)
    plan = leave_out(plan, skipped)
    point = ResumePoint(plan, skipped, record, done, _keep_lines(run_dir, done))
    if record is None or done == 0:
        return point
    if point.lines.last.get("pass") != done:
        point.lines.add(json.loads(record.cursor["line"]))
        point.line_missing = True
    log.info(
        "%s: goes on after pass %d, version %d of %s",
        run_dir,
        done,
        record.version,
        record.created_at,
    )
    return point


def check_unchanged(run_dir: Path, record: VersionRecord | None) -> None:
    """Raises StoreError if another command has changed the store since its newest version was read.
    The caller holds the store's lock."""
    data = run_dir / "store" / "manifest" / "data.mdb"
    head = None
    if data.is_file() and data.stat().st_size:
        with VersionStore.open_writer(run_dir / "store") as manifest:
            head = manifest.newest()
    found, expected = (one.crc32c if one is not None else None for one in (head, record))
    if found != expected:
        raise StoreError(
            f"{run_dir / 'store'}: expected version {record.version if record else 0}, found "
            f"version {head.version if head else 0}: another command changed the store while this "
            "run was starting: start it again"
        )


def move_aside(run_dir: Path) -> None:
    """Rename a run dir to RUN_DIR.old-N, so that a new run can start. Raises: StoreLockedError if a
    run is using it; StoreError if it cannot be renamed."""
    if not run_dir.exists():
        return
    names = (run_dir.with_name(f"{run_dir.name}.old-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    try:
        with KeptLock(run_dir / "store"):
            run_dir.rename(aside)
    except FileNotFoundError:
        return  # another rank has moved it
    except StoreError:  # it is an OSError, too
        raise
    except OSError as error:
        raise StoreError(f"{run_dir}: cannot be moved to {aside}: {error.strerror}") from error
    log.info("%s: moved to %s", run_dir, aside)


def _check(request: ResumeRequest, record: VersionRecord, known: Known) -> None:
    run_dir, config, (plan, hashes) = request.run_dir, request.config, known
    passes = int(record.cursor.get("pass", 0))
    filled = bool(record.config) and passes == 0  # by --init-from; no pass is trained yet
    if passes == 0 and record.pass_number == 0 and not filled:
        return
    if not filled and "plan" not in record.cursor:
        raise StoreError(
            f"{run_dir}: version {record.version} was not committed by paddlebox train and does "
            "not hold its configuration: choose another --run-dir, or --fresh, which moves it aside"
        )
    differing = list(differences(record.config, description(config, request.slots)))
    wrong = [d for d in differing if not within(d[0], (*FREE, *PASSES, *TUNED))]
    same_passes = filled or (len(hashes) >= passes and hashes[passes - 1] == record.cursor["plan"])
    if not same_passes:
        wrong += [d for d in differing if d[0] in PASSES]
    if wrong or not same_passes:
        lines = as_lines(wrong)
        if not same_passes:
            lines.append(
                f"the {passes} passes that were trained are no longer the first {passes} of the "
                f"config's {len(hashes)}; files may be added at the end, as further passes. "
                + _first_change(run_dir, record, plan)
            )
        raise ConfigError(
            f"{run_dir}: version {record.version} was trained with another configuration and "
            "cannot go on with this one:\n  " + "\n  ".join(lines) + "\nput these values back, or "
            "choose another --run-dir, or --fresh, which moves this one aside"
            + _warm_start(run_dir, [key for key, _, _ in wrong])
        )
    for key, old, new in differing:
        if within(key, TUNED) or (_OF_BUDGETS.fullmatch(key) and _rounds(config)):
            log.warning("goes on with %s: was %s, now %s", key, show_value(old), show_value(new))
    if not filled:
        trained = trained_files(record.cursor)
        for file, now in changed(trained).items():
            log.warning("%s %s: it is not read again", file, trained[file].change_to(now))


def trained_files(cursor: Mapping[str, Any]) -> dict[str, FileState]:
    """The local files of a commit's pass, with their states at the commit."""
    files = json.loads(cursor["line"])["files"]
    return {
        file: FileState(size, sample)
        for file, size, sample in zip(files, cursor["bytes"], cursor["samples"], strict=True)
        if size is not None
    }


def _first_change(run_dir: Path, record: VersionRecord, plan: Sequence[PlannedPass]) -> str:
    """A text about the first trained pass that differs from the plan."""
    passes = int(record.cursor["pass"])
    lines = run_config.lines_of(run_dir / "metrics.jsonl", passes)
    for number, line in {**lines, passes: json.loads(record.cursor["line"])}.items():
        if number > len(plan):
            return (
                f"Pass {number} was trained on {line['files'][0]}, and the config has no such pass"
            )
        planned = plan[number - 1]
        for was, now in itertools.zip_longest(line["files"], planned.files):
            if was is None and not planned.date:
                return (
                    f"The config adds {now} to pass {number}: set data.files_per_pass to "
                    f"{len(line['files'])}, the number of its files, so that it is a further pass"
                )
            if was != now:
                return (
                    f"The first that differs: pass {number} was trained on {was or 'no more files'}"
                    f", the config has {now or 'no more files'} there"
                )
        if line["date"] != planned.date:
            return (
                f"The first that differs: pass {number}, {line['files'][0]}, had the date "
                f"{line['date'] or 'none'}, and has {planned.date or 'none'} now"
            )
    return f"{run_dir / 'metrics.jsonl'} does not show which of them differs"


def _warm_start(run_dir: Path, keys: Sequence[str]) -> str:
    """Advice to start another run with the rows of this one; "" if that would not work either."""
    if all(within(key, PASSES) for key in keys) or "data.key_space" in keys:
        return ""
    return (
        f". To train on with its rows, start another run: --run-dir NEW --init-from {run_dir} "
        "(docs/warm_start.md)"
    )


def _skipped_before(run_dir: Path) -> dict[str, int]:
    """The skipped files of a run that has no commit yet. A commit keeps them in its cursor."""
    path = run_dir / "skipped.json"
    found: dict[str, int] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found


def _keep_skipped(run_dir: Path, skipped: Mapping[str, int]) -> None:
    if skipped != _skipped_before(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        write_durably(str(run_dir / "skipped.json"), json.dumps(dict(skipped)).encode())


def _log_skipped(skipped: Mapping[str, int]) -> None:
    for file, last in skipped.items():
        log.info("%s: is left out after pass %d (--skip-files)", file, last)


def _rounds(config: Config) -> bool:
    """Whether hbm.budget_bytes affects results: it sets the number of parts of a pass, and rows of
    16 bits are rounded once per part."""
    return any(table.row_precision != "float32" for table in config.tables)


def _sound_lines(path: Path, passes: int) -> Lines | None:
    """The lines of a file that needs no change; None if it does. A run of short passes has more
    lines than fit in memory."""
    if not path.is_file():
        return None
    lines = Lines(WINDOW_PASSES)
    with open(path, errors="replace") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
                if number > passes or line["pass"] != number or text != json.dumps(line) + "\n":
                    return None
                lines.add(line)
            except (ValueError, TypeError, LookupError):
                return None
    return lines if lines.passes >= passes - 1 else None


def _keep_lines(run_dir: Path, passes: int) -> Lines:
    """Read the lines of metrics.jsonl up to a pass; remove others, and torn and repeated ones."""
    path = run_dir / "metrics.jsonl"
    sound = _sound_lines(path, passes)
    if sound is not None:
        return sound
    found = run_config.lines_of(path, passes)
    # The line of the newest pass may not have been written when the run ended.
    lost = [number for number in range(1, passes) if number not in found]
    if lost:
        log.warning(
            "%s: lacks the lines of %d of %d passes, first of pass %d: training is not affected, "
            "but reports and alerts lack these passes",
            path,
            len(lost),
            passes,
            lost[0],
        )
    lines = [*found.values()]
    wanted = "".join(json.dumps(line) + "\n" for line in lines)
    if path.is_file() and wanted != path.read_text(errors="replace"):
        write_durably(str(path), wanted.encode())
    return Lines(WINDOW_PASSES, lines)
