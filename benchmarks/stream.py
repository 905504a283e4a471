"""A run over a stream: how old is what is served, and what does a short pass cost?

    python benchmarks/stream.py {lag,rate,passes,soak}

The stream is a folder to which lines of ten hashed slots and a label are appended.

lag     5,000 events a second, passes of 5 s, saves after each pass, an export file that follows
        them and a server that follows the file. A client predicts all the time; an event is served
        once a prediction comes from a version that has trained it. Goal: p95 of 15 s
rate    events a second that are trained and published from a backlog: above it, the lag grows
passes  processor time of passes of 1,000 records, beside that of the same records in passes of
        20,000. Goal: 50 ms a pass
soak    memory and disk over 2,000 passes, with `table.max_rows`. Goals: 0.02 MiB a pass each, over
        the second half
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import report
import yaml

SLOTS, CARDINALITY = 10, 20_000
_TICK_S = 0.1  # between two writes of events
_POLL_S = 0.1  # between two predictions
_FIRST_S = 180.0  # most seconds until the first version is served


def lines(count: int, seed: int = 1) -> list[str]:
    """Events whose click depends on the first slot."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        values = [int(CARDINALITY * chance.random() ** 3) for _ in range(SLOTS)]
        click = int(chance.random() < (values[0] % 7) / 7)
        found.append(",".join([str(click), *(f"s{value}" for value in values)]) + "\n")
    return found


def write_config(folder: Path, stream: dict[str, Any], **sections: Any) -> Path:
    names = [f"slot{number}" for number in range(SLOTS)]
    slots: list[dict[str, Any]] = [{"name": "click", "type": "label"}]
    slots += [{"name": name, "type": "sparse", "hash": True} for name in names]
    header = {"header": False, "columns": ["click", *names]}
    (folder / "slots.yaml").write_text(yaml.safe_dump({"csv": header, "slots": slots}))
    (folder / "events").mkdir()
    config = {
        "name": "stream",
        "data": {
            "format": "csv",
            "slots": str(folder / "slots.yaml"),
            "stream": {"source": str(folder / "events"), **stream},
        },
        "model": {"type": "deepfm", "hidden": [64, 32], "click_prior": False},
        "mem": {"budget_bytes": "64MiB"},
        "hbm": {"budget_bytes": "64MiB"},
        **sections,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def saves(folder: Path) -> dict[str, Any]:
    published = {"file": str(folder / "model.export")}
    return {"save": {"out": str(folder / "saves")}, "publish": published}


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of paddlebox; its log is in the folder. It is ended if it has not."""
    with open(folder / f"{arguments[0]}.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "paddlebox", *arguments],
            cwd=report.ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def trained(folder: Path, config: Path, watch: Callable[[int], None] | None = None) -> Any:
    """Train to the end of the stream. watch: called about ten times a second with the process."""
    arguments = ("train", "-c", str(config), "--run-dir", str(folder / "run"))
    with started(folder, *arguments) as process:
        while process.poll() is None:
            if watch is not None:
                watch(process.pid)
            time.sleep(0.1)
        if process.returncode != 0:
            raise RuntimeError((folder / "train.log").read_text()[-2000:])
    return metrics_of(folder)


# ---- lag


class Events:
    """Appends events to a file at a rate, in a thread of its own."""

    def __init__(self, path: Path, rate: int) -> None:
        self._path, self._a_tick = path, round(rate * _TICK_S)
        self._lines = [line.encode() for line in lines(100_000)]
        self.times: list[float] = []  # of each write
        self.ends: list[int] = []  # bytes after it
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Events:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _write(self) -> None:
        begin, count = time.time(), 0
        with open(self._path, "ab", buffering=0) as file:
            while not self._end.is_set():
                at = count * self._a_tick % (len(self._lines) - self._a_tick)
                file.write(b"".join(self._lines[at : at + self._a_tick]))
                self.times.append(time.time())
                self.ends.append(file.tell())
                count += 1
                time.sleep(max(0.0, begin + count * _TICK_S - time.time()))


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _predicted(port: int) -> int:
    """The version of a prediction; 0: there is no server yet."""
    body = json.dumps({"instances": [{"slot0": ["s1"]}]}).encode()
    url = f"http://127.0.0.1:{port}/predict"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(json.loads(answer.read())["version"])
    except OSError:
        return 0


def _versions(folder: Path) -> dict[int, int]:
    """Version -> its pass."""
    metas = (json.loads(path.read_text()) for path in folder.glob("saves/*/*/meta.json"))
    return {meta["version"]: meta["pass_number"] for meta in metas}


def lag(options: argparse.Namespace, folder: Path) -> report.Found:
    stream = {"pass_records": 10 * options.rate, "pass_s": options.pass_s}
    config, port = write_config(folder, stream, **saves(folder)), _port()
    file, export = folder / "events" / "part-0", folder / "model.export"
    seen: list[tuple[float, int]] = []  # time of a prediction, its version
    run = ("train", "-c", str(config), "--run-dir", str(folder / "run"))
    with Events(file, options.rate) as events, started(folder, *run) as trainer:
        _wait_for(export.exists, folder)
        with started(folder, "serve", str(export), "--port", str(port)):
            _wait_for(lambda: _predicted(port) > 0, folder)
            end = time.time() + options.seconds
            while time.time() < end and trainer.poll() is None:
                seen.append((time.time(), _predicted(port)))
                time.sleep(_POLL_S)
    passes = {line["pass"]: line for line in metrics_of(folder)}
    ages = _ages(events, seen, passes, _versions(folder))
    if not ages:
        raise RuntimeError((folder / "train.log").read_text()[-2000:])
    p50, p95, p99 = np.percentile(ages, [50, 95, 99])
    figures = {
        "event to served prediction": {"p50_s": p50, "p95_s": p95, "p99_s": p99},
        "events": len(ages) * round(options.rate * _TICK_S),
        "passes": len(passes),
        "samples of a pass": statistics.median(line["samples"] for line in passes.values()),
        "behind at the end": passes[max(passes)]["stream"]["behind"],
        "AUC of the last pass": passes[max(passes)]["metrics"]["auc"],
    }
    return figures, [report.at_most("event to served prediction, p95, s", float(p95), 15)]


def _wait_for(there: Callable[[], bool], folder: Path) -> None:
    end = time.time() + _FIRST_S
    while not there():
        if time.time() > end:
            raise RuntimeError((folder / "train.log").read_text()[-2000:])
        time.sleep(0.2)


def _ages(
    events: Events,
    seen: list[tuple[float, int]],
    passes: dict[int, dict[str, Any]],
    pass_of: dict[int, int],
) -> list[float]:
    """For each write of events after the first prediction: seconds until it is served."""
    ages: list[float] = []
    served = bisect.bisect(events.times, seen[0][0]) if seen else 0
    for at, version in seen:
        line = passes.get(pass_of.get(version, 0))
        if line is None:
            continue
        (end,) = line["stream"]["offsets"].values()
        while served < len(events.ends) and events.ends[served] <= end:
            ages.append(at - events.times[served])
            served += 1
    return ages


# ---- rate, passes, soak


def _filled(folder: Path, records: int, stream: dict[str, Any], **sections: Any) -> Path:
    config = write_config(folder, {"until": "end", **stream}, **sections)
    some = lines(min(records, 200_000))
    with open(folder / "events" / "part-0", "w") as file:
        for begin in range(0, records, len(some)):
            file.writelines(some[: records - begin])
    return config


def rate(options: argparse.Namespace, folder: Path) -> report.Found:
    records = options.passes * options.records
    config = _filled(folder, records, {"pass_records": options.records}, **saves(folder))
    found = trained(folder, config)
    first, last = found[len(found) // 4], found[-1]
    count = sum(line["samples"] for line in found[len(found) // 4 + 1 :])
    figure = count / (last["ended_at"] - first["ended_at"])
    return {"events a second": figure, "passes": len(found)}, [
        report.at_least("events a second, trained and published", figure, 5000)
    ]


def passes(options: argparse.Namespace, folder: Path) -> report.Found:
    costs = []
    records = options.passes * 1000
    for turn in range(options.turns):
        of_size = {}
        for size in (1000, 20_000):
            own = folder / f"{turn}-{size}"
            own.mkdir()
            found = trained(own, _filled(own, records, {"pass_records": size}))
            late = found[len(found) // 4 :]
            of_size[size] = sum(line["cpu_s"] for line in late) / sum(
                line["samples"] for line in late
            )
        costs.append(1e6 * (of_size[1000] - of_size[20_000]))
    figures = {"processor ms of a pass beside its records": report.spread(costs)}
    return figures, [report.at_most("processor ms of a pass beside its records", costs, 50)]


def soak(options: argparse.Namespace, folder: Path) -> report.Found:
    bounds = {"max_rows": 20_000}
    stream = {"pass_records": 100}
    config = _filled(folder, 100 * options.passes, stream, table=bounds)
    memory: list[tuple[int, float]] = []
    disk: list[tuple[int, float]] = []
    seen = 0.0

    def watch(process: int) -> None:
        nonlocal seen
        if time.monotonic() - seen < 2:
            return
        seen = time.monotonic()
        count = len(metrics_of(folder))
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{process}/status").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
            memory.append((count, kib / 1024))
            disk.append((count, _bytes_below(folder / "run" / "store") / 2**20))

    found = trained(folder, config, watch)
    slopes = {"memory": _slope(memory), "disk of the store": _slope(disk)}
    figures = {
        "MiB a pass": slopes,
        "passes": len(found),
        "live rows": found[-1]["sizes"]["live_rows"],
        "memory, MiB": memory[-1][1],
        "disk of the store, MiB": disk[-1][1],
        "seconds of a pass": statistics.median(line["seconds"] for line in found),
    }
    goals = [report.at_most(f"{name}, MiB a pass", value, 0.02) for name, value in slopes.items()]
    return figures, goals


def _bytes_below(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(where, name)).st_size
    return total


def _slope(points: list[tuple[int, float]]) -> float:
    """MiB a pass over the second half."""
    late = [point for point in points if point[0] >= points[-1][0] / 2]
    counts, values = np.array(late, float).T
    return float(np.polyfit(counts, values, 1)[0])


PARTS: dict[str, report.Part] = {"lag": lag, "rate": rate, "passes": passes, "soak": soak}


def main() -> int:
    parser, of = report.parts("stream", __doc__, PARTS)
    of["lag"].add_argument("--rate", type=int, default=5000, help="events a second")
    of["lag"].add_argument("--pass-s", type=float, default=5.0)
    of["lag"].add_argument("--seconds", type=float, default=180.0)
    of["rate"].add_argument("--records", type=int, default=25_000, help="of a pass")
    of["rate"].add_argument("--passes", type=int, default=20)
    of["passes"].add_argument("--passes", type=int, default=200)
    of["passes"].add_argument("--turns", type=int, default=3)
    of["soak"].add_argument("--passes", type=int, default=2000)
    options = parser.parse_args()
    return report.timed(options, lambda folder: PARTS[options.part](options, folder))


if __name__ == "__main__":
    report.run(main)
