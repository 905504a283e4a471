"""Reports of passes: their lines in metrics.jsonl and in the log, and a progress bar."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from tqdm import TqdmWarning

from paddlebox.data.passes import PassStats
from paddlebox.data.pipeline import AFTER, BEFORE, WORK
from paddlebox.store.table_set import TableSet
from paddlebox.training.batch_loop import Watcher
from paddlebox.training.measured import PassResult
from paddlebox.training.metrics import (
    PassMetrics,
    format_auc,
    format_metrics,
    short_metrics,
    warn_of_one_class,
)
from paddlebox.training.plan import PlannedPass

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # a notebook without ipywidgets has a bar of text
    from tqdm.auto import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger("paddlebox")

Line = dict[str, Any]  # the line of a pass


class Lines:
    """The last lines of metrics.jsonl, and the totals over all lines. keep: how many to keep, at
    least one."""

    def __init__(self, keep: int = 1, lines: Iterable[Line] = ()) -> None:
        self._recent: deque[Line] = deque(maxlen=max(1, keep))
        self.passes = 0
        self.samples = 0
        self.held_out = 0
        self.batches = 0
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        self._recent.append(line)
        self.passes += 1
        self.samples += int(line["samples"])
        self.held_out += int(line.get("held_out", 0))
        self.batches += int(line.get("batches", 0))

    @property
    def last(self) -> Line:
        """The last line, empty before the first pass. Callers may add entries to it."""
        return self._recent[-1] if self._recent else {}

    @property
    def recent(self) -> list[Line]:
        """The lines that are kept, oldest first."""
        return [*self._recent]


def title(planned: PlannedPass, passes: int, again: bool = False) -> str:
    """The name of a pass in logs, such as "pass 3/10 (20240103)". passes: of the run; 0 for
    hours and streams. again: whether its files were trained before, so that its metrics are too
    good."""
    when = planned.hour or planned.date
    if planned.epoch > 1:
        when = f"epoch {planned.epoch}"
    if again or planned.epoch > 1:
        when += f"{', ' if when else ''}on rows seen before"
    return f"pass {planned.number}{f'/{passes}' if passes else ''}{f' ({when})' if when else ''}"


def outcome(
    planned: PlannedPass, result: PassResult, stats: PassStats, of_phases: Mapping[str, Any]
) -> dict[str, Any]:
    """The first entries of a pass's line. A commit stores them too."""
    return {
        "pass": planned.number,
        "epoch": planned.epoch,
        "date": planned.date,
        **_of_hour(planned),
        **_of_stream(planned, stats),
        "files": list(planned.files),
        "samples": result.samples,
        **({} if result.late_lines is None else {"late_lines": result.late_lines}),
        **({} if stats.held_out is None else {"held_out": stats.held_out}),
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


def _of_stream(planned: PlannedPass, stats: PassStats) -> dict[str, Any]:
    if not planned.stream:
        return {}
    event_time = {"event_time": round(stats.event_time, 3)} if stats.event_time else {}
    return {**event_time, "stream": {**planned.stream, "ahead": stats.ahead}}


class StartedPass:
    """The state at the start of a pass, which its line subtracts from that at its end. title: as
    "pass 3/10 (20240103)"."""

    def __init__(self, table: TableSet, title: str) -> None:
        self.title, self._table = title, table
        self._counters, self._counters_of = table.counters(), _by_table(table)
        self._waited_s, self._exchanged = table.compaction_wait_s, table.exchange.exchanged()
        self._at, self._cpu_s = time.perf_counter(), time.process_time()

    def line(self, outcome: Line, stats: PassStats, dense_sent_bytes: int) -> Line:
        """The line of the pass, which has just ended. Collective. outcome: its first entries.
        dense_sent_bytes: bytes sent for dense parameters by this rank since the process started."""
        seconds, table = time.perf_counter() - self._at, self._table
        before, after = self._counters, table.counters()
        moved = _moved(before, after)
        of_phases = outcome.get("phases", {}).values()
        steps = sum(of["batches"] for of in of_phases) or outcome["batches"]
        ranks = self._exchanged.report(dense_sent_bytes, steps, outcome["samples"], stats.samples)
        bad = _moved(Counter(before["bad_grads"]), after["bad_grads"])
        return {
            **outcome,
            "ended_at": round(time.time(), 3),
            "seconds": seconds,
            "cpu_s": time.process_time() - self._cpu_s,
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
            "rows_pulled": moved["rows_pulled"],
            "rows_pushed": moved["rows_pushed"],
            "unique_ratio": moved["rows_pushed"] / max(1, moved["ids_pushed"]),
            "bytes_moved": moved["bytes_pulled"] + moved["bytes_pushed"],
            "kernel_s": {name: moved[f"{name}_ns"] / 1e9 for name in ("pull", "push", "plan")},
            "bad_grads": {str(slot): count for slot, count in bad.items() if count},
            **self._tables(stats),
            **({"ranks": dict(ranks)} if ranks else {}),
            "compaction_wait_s": table.compaction_wait_s - self._waited_s,
            "life": {name: moved[f"life_{name}"] for name in _LIFE},
            "ssd": {name: moved[f"ssd_{name}"] for name in _SSD},
            "sizes": _sizes(table),
        }

    def _tables(self, stats: PassStats) -> dict[str, Any]:
        """The entry "tables": counts by table. Empty if there is one table."""
        if len(self._counters_of) == 1:
            return {}
        of_table = {}
        for name, after in _by_table(self._table).items():
            moved = _moved(self._counters_of[name], after)
            counts = {name: moved[name] for name in ("rows_pulled", "rows_pushed")}
            hits = dict(stats.hits_of.get(name, {}))
            of_table[name] = {"refused": hits.pop("refused", 0), "hits": hits, **counts}
        return {"tables": of_table}


def _by_table(table: TableSet) -> dict[str, dict[str, Any]]:
    return {member.name: member.counters() for member in table.members}


def _moved(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    """What the numbers among some counters have grown by."""
    return {k: n - before[k] for k, n in after.items() if isinstance(n, int | float)}


def _sizes(table: TableSet) -> dict[str, int]:
    """Sizes summed over all tables: of the newest commit "live_rows", "segments" and
    "segment_bytes"; "mem_rows", the rows in MEM now; "pass_bytes" and "merge_bytes", written since
    the tables were opened."""
    counters = [member.counters() for member in table.members]
    heads = [member.head for member in table.members if member.head is not None]
    return {
        "version": table.head.version if table.head is not None else 0,
        "live_rows": sum(head.live_rows for head in heads),
        "segments": sum(len(head.segments) for head in heads),
        "segment_bytes": sum(s["bytes"] for head in heads for s in head.segments),
        "mem_rows": sum(c["mem_rows"] for c in counters),
        "pass_bytes": sum(c["ssd_bytes_written"] for c in counters),
        "merge_bytes": sum(c["ssd_merge_bytes_written"] for c in counters),
    }


_METRICS_EVERY = 100  # batches between updates of the loss and the AUC in the progress bar
_LIFE = ("events", "dead_staged", "dead_merged", "dead_swept")
_SSD = ("rows_found", "blocks_read", "bytes_read", "bytes_written")


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
    if "held_out" in line:
        parts.append(f"{line['held_out']} held out")
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


def together(watchers: Iterable[Watcher | None]) -> Watcher | None:
    """One watcher that calls all of them; None if there is none."""
    called = [watcher for watcher in watchers if watcher is not None]
    if len(called) < 2:
        return called[0] if called else None

    def watch(batches: int, done: int, loss: float, metrics: PassMetrics) -> None:
        for watcher in called:
            watcher(batches, done, loss, metrics)

    return watch


@contextmanager
def progress(title: str, samples: int) -> Iterator[Watcher | None]:
    """Show a progress bar in a notebook, or if standard error is a terminal, with log lines above
    it. Yields a watcher that advances it; None without a bar. samples: of the pass."""
    with (
        tqdm(
            total=samples,
            desc=title,
            unit=" samples",
            unit_scale=True,
            leave=False,  # the log line of the pass replaces it
            disable=False if _in_notebook() else None,  # None: shown on a terminal only
        ) as bar,
        nullcontext() if bar.disable else logging_redirect_tqdm(_console_loggers()),
    ):

        def watch(batches: int, done: int, loss: float, metrics: PassMetrics) -> None:
            if batches == 1 or batches % _METRICS_EVERY == 0:
                auc = format_auc(metrics.compute()["auc"], 4)
                bar.set_postfix({"loss": f"{loss:.4f}", "AUC": auc}, refresh=False)
            bar.update(done - bar.n)

        yield None if bar.disable else watch


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def _console_loggers() -> list[logging.Logger]:
    """The logger whose handler shows the log on the console: the project's own, or the root."""
    return [log] if log.handlers else [logging.getLogger()]
