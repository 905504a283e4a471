"""Reports of passes: their lines in metrics.jsonl and in the log, and a progress bar."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from paddlebox.data.passes import PassStats
from paddlebox.data.pipeline import AFTER, BEFORE, WORK
from paddlebox.store.table_set import TableSet
from paddlebox.train.measured import PassResult
from paddlebox.train.metrics import (
    PassMetrics,
    format_auc,
    format_metrics,
    short_metrics,
    warn_of_one_class,
)
from paddlebox.train.observe import sizes
from paddlebox.train.plan import PlannedPass

log = logging.getLogger("paddlebox")

Line = dict[str, Any]  # the line of a pass


class Lines:
    """The last lines of metrics.jsonl, and the totals over all lines. keep: how many to keep, at
    least one."""

    def __init__(self, keep: int = 1, lines: Iterable[Line] = ()) -> None:
        self._recent: deque[Line] = deque(maxlen=max(1, keep))
        self.passes = 0
        self.samples = 0
        self.batches = 0
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        self._recent.append(line)
        self.passes += 1
        self.samples += int(line["samples"])
        self.batches += int(line.get("batches", 0))

    @property
    def last(self) -> Line:
        """The last line, empty before the first pass. Callers may add entries to it."""
        return self._recent[-1] if self._recent else {}

    @property
    def recent(self) -> list[Line]:
        """The lines that are kept, oldest first."""
        return [*self._recent]


class Started(NamedTuple):
    """The state at the start of a pass, to subtract from the state at its end."""

    title: str  # "pass 3/10 (20240103)"
    counters: dict[str, Any]  # of all tables
    counters_of: dict[str, dict[str, Any]]  # by table
    compaction_wait_s: float
    at: float  # time.perf_counter()
    exchanged: Any  # `Coordinator.exchanged`
    cpu_s: float  # CPU time of this process


def title(planned: PlannedPass, passes: int, again: bool = False) -> str:
    """The name of a pass in logs, such as "pass 3/10 (20240103)". passes: of the run; 0 for a
    stream of hours. again: whether its files were trained before, so that its metrics are too
    good."""
    when = planned.hour or planned.date
    if planned.epoch > 1:
        when = f"epoch {planned.epoch}"
    if again or planned.epoch > 1:
        when += f"{', ' if when else ''}on rows seen before"
    return f"pass {planned.number}{f'/{passes}' if passes else ''}{f' ({when})' if when else ''}"


def at_start(table: TableSet, title: str) -> Started:
    counters_of = {member.name: member.counters() for member in table.members}
    return Started(
        title,
        table.counters(),
        counters_of,
        table.compaction_wait_s,
        time.perf_counter(),
        table.world.exchanged(),
        time.process_time(),
    )


def by_table(
    table: TableSet, before: dict[str, dict[str, Any]], hits: dict[str, dict[str, int]]
) -> dict[str, Any]:
    """The entry "tables" of a pass's line: counts by table. Empty if there is one table."""
    if len(table.members) == 1:
        return {}
    of_table = {}
    for member in table.members:
        after, names = member.counters(), ("rows_pulled", "rows_pushed")
        moved = {name: after[name] - before[member.name][name] for name in names}
        of_table[member.name] = {"hits": hits.get(member.name, {}), **moved}
    return {"tables": of_table}


def hot_path(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Bytes and seconds of the pulls and pushes of a pass, from the counters before and after."""
    spent = {name: after[name] - before[name] for name in ("ids_pushed", "rows_pushed")}
    bad = {
        slot: count - before["bad_grads"].get(slot, 0) for slot, count in after["bad_grads"].items()
    }
    return {
        "unique_ratio": spent["rows_pushed"] / max(1, spent["ids_pushed"]),
        "bytes_moved": sum(after[name] - before[name] for name in ("bytes_pulled", "bytes_pushed")),
        "kernel_s": {
            name: (after[f"{name}_ns"] - before[f"{name}_ns"]) / 1e9
            for name in ("pull", "push", "plan")
        },
        "bad_grads": {str(slot): count for slot, count in bad.items() if count},
    }


def outcome(
    planned: PlannedPass, result: PassResult, stats: PassStats, of_phases: Mapping[str, Any]
) -> dict[str, Any]:
    """The first entries of a pass's line. A commit stores them too."""
    return {
        "pass": planned.number,
        "epoch": planned.epoch,
        "date": planned.date,
        **_of_hour(planned),
        "files": list(planned.files),
        "samples": result.samples,
        **({} if result.late_lines is None else {"late_lines": result.late_lines}),
        "batches": result.batches,
        "loss": result.mean_loss,
        "metrics": result.metrics,
        "calibration": result.calibration,
        "lines": stats.lines,
        "bad_lines": stats.bad_lines,
        "truncated": stats.truncated,
        "unique_feasigns": stats.unique_feasigns,
        "refused": stats.refused,
        **({"sequences": stats.sequences} if stats.sequences else {}),
        **({"phases": dict(of_phases)} if of_phases else {}),
    }


def _of_hour(planned: PlannedPass) -> dict[str, Any]:
    if not planned.hour:
        return {}
    return {
        "hour": planned.hour,
        "missing_hours": list(planned.missing),
        "written_at": round(planned.written_at, 3),
    }


def ended(
    table: TableSet,
    begin: Started,
    outcome: Mapping[str, Any],
    stats: PassStats,
    dense_sent_bytes: int,
) -> dict[str, Any]:
    """The line of a pass that has just ended. Collective.

    Args:
        outcome: the entries that `outcome` returned.
        dense_sent_bytes: bytes sent for dense parameters by this rank since the process started.
    """
    seconds = time.perf_counter() - begin.at
    before, after = begin.counters, table.counters()
    steps = sum(of["batches"] for of in outcome.get("phases", {}).values()) or outcome["batches"]
    ranks = table.world.report(
        begin.exchanged, dense_sent_bytes, steps, outcome["samples"], stats.samples
    )
    return {
        **outcome,
        "ended_at": round(time.time(), 3),
        "seconds": seconds,
        "cpu_s": time.process_time() - begin.cpu_s,
        "samples_per_s": outcome["samples"] / seconds if seconds else 0.0,
        "parts": stats.parts,
        "spilled_bytes": stats.spilled_bytes,
        "files_from_cache": stats.files_from_cache,
        "dedup": stats.dedup,
        "hits": stats.hits,
        "work_s": stats.work_s,
        "wait_s": stats.wait_s,
        "stages": stats.times.as_dict(),
        "spans": stats.times.spans(),
        "threads": {"load": stats.load_threads, "pack": stats.pack_threads},
        "rows_pulled": after["rows_pulled"] - before["rows_pulled"],
        "rows_pushed": after["rows_pushed"] - before["rows_pushed"],
        **hot_path(before, after),
        **by_table(table, begin.counters_of, stats.hits_of),
        **({"ranks": dict(ranks)} if ranks else {}),
        "compaction_wait_s": table.compaction_wait_s - begin.compaction_wait_s,
        "life": _difference(before, after, "life_", _LIFE),
        "ssd": _difference(before, after, "ssd_", _SSD),
        "sizes": sizes(table),
    }


_METRICS_EVERY = 100  # batches between updates of the loss and the AUC in the progress bar
_LIFE = ("events", "dead_staged", "dead_merged", "dead_swept")
_SSD = ("rows_found", "blocks_read", "bytes_read", "bytes_written")


def _difference(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str, names: Sequence[str]
) -> dict[str, Any]:
    return {name: after[prefix + name] - before[prefix + name] for name in names}


def written_a_day(table: TableSet, seconds: float) -> int:
    """Bytes of segments that the run would write in a day. seconds: how long it has run."""
    counters = table.counters()
    written = counters["ssd_bytes_written"] + counters["ssd_merge_bytes_written"]
    return int(written / max(seconds, 1e-9) * 86400)


def log_pass(title: str, line: Mapping[str, Any]) -> None:
    """Log one line for a pass; at level DEBUG, also all metrics, tier hits and stage times."""
    of_phases = {phase: own["metrics"] for phase, own in line.get("phases", {}).items()}
    measured = of_phases or {"": line["metrics"]}
    parts = [f"loss {line['loss']:.4f}"]
    parts += filter(None, (short_metrics(of, phase) for phase, of in measured.items()))
    log.info("%s: %s, %.0f samples/s", title, ", ".join(parts), line["samples_per_s"])
    warn_of_one_class(title, line["metrics"])
    if not log.isEnabledFor(logging.DEBUG):
        return
    for phase, of in measured.items():
        if of.get("size"):
            log.debug("%s%s: %s", title, f", {phase}" if phase else "", format_metrics(of))
    log.debug(
        "%s: %d samples; rows %s; waited %s; %d load and %d pack threads; stages, seconds of work "
        "(waited before, after): %s",
        title,
        line["samples"],
        " ".join(f"{tier}={rows}" for tier, rows in line["hits"].items()),
        " ".join(f"{stage}={seconds:.2f}s" for stage, seconds in line["wait_s"].items()),
        line["threads"]["load"],
        line["threads"]["pack"],
        " ".join(
            f"{stage} {s[WORK]:.2f} ({s[BEFORE]:.2f}, {s[AFTER]:.2f})"
            for stage, s in line["stages"].items()
        ),
    )


@contextmanager
def progress(title: str, samples: int) -> Iterator[Any]:
    """Show a progress bar if standard error is a terminal, with log lines above it. Yields a
    `Watcher` that advances it. samples: of the pass."""
    with (
        tqdm(
            total=samples,
            desc=title,
            unit=" samples",
            unit_scale=True,
            leave=False,  # the log line of the pass replaces it
            disable=None,  # tqdm then shows it on a terminal only
        ) as bar,
        nullcontext() if bar.disable else logging_redirect_tqdm(),
    ):

        def watch(batches: int, done: int, loss: float, metrics: PassMetrics) -> None:
            if bar.disable:
                return
            if batches == 1 or batches % _METRICS_EVERY == 0:
                auc = format_auc(metrics.compute()["auc"], 4)
                bar.set_postfix({"loss": f"{loss:.4f}", "AUC": auc}, refresh=False)
            bar.update(done - bar.n)

        yield watch
