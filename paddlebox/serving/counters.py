"""Counters of ignored fields and of a server, and the limits of a server.

Counters of a server are in memory that its workers share. Each worker writes only its own row, from
one thread, so no lock is needed. A worker that replaces a dead one continues its row, so counters
never decrease.
"""

from __future__ import annotations

import bisect
import logging
import mmap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

_INFER = "/v2/models/{model}/infer"  # with and without a version
_PREDICTS = ("/predict", _INFER)

ENDPOINTS = (
    *("/predict", "/search", _INFER, "/v2", "/healthz", "/metrics", "/openapi.json", "/docs"),
    "other",
)
# Of ignored fields: the most names, their most characters, and what counts further names.
MOST_IGNORED, IGNORED_LENGTH, OTHER_FIELDS = 32, 64, "(others)"
STATUSES = (200, 400, 404, 405, 408, 409, 413, 415, 422, 500, 503, 504, 0)  # 0: any other
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STALENESS_S = (1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)

_ROW = np.dtype(
    [
        ("starts", np.float64),  # how often a worker with this row became ready
        ("version", np.float64),  # 0: not ready
        ("created_at", np.float64),  # of the version's generation, seconds since 1970
        ("event_time", np.float64),  # of the version, seconds since 1970; 0: not known
        ("staleness", np.float64),  # sum over requests; `staleness_buckets` counts them by it
        ("staleness_buckets", np.float64, (len(STALENESS_S) + 1,)),
        ("instances", np.float64),
        ("waiting", np.float64),  # predictions queued or running
        ("seconds", np.float64),  # sum over requests for predictions; `buckets` counts them by time
        ("buckets", np.float64, (len(BUCKETS_S) + 1,)),
        ("ignored_names", f"S{4 * IGNORED_LENGTH}", (MOST_IGNORED + 1,)),  # in UTF-8
        ("ignored", np.float64, (MOST_IGNORED + 1,)),  # how often, by the place of the name
        ("requests", np.float64, (len(ENDPOINTS), len(STATUSES))),
    ]
)


def _limit(default: float, about: str) -> Any:
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class ServeOptions:
    """The limits of one worker: those of `paddlebox serve`. More than max_queue predictions that
    are queued or running are refused; max_connections_per_client counts those from one address."""

    max_body_bytes: int = _limit(1 << 20, "bytes of a request")
    max_batch: int = _limit(4096, "instances of a request")
    max_queue: int = _limit(64, "requests that wait in a worker")
    timeout_s: float = _limit(
        10.0, "seconds for the headers, to the prediction, and for the response"
    )
    idle_s: float = _limit(75.0, "seconds of a connection without a request")
    max_connections: int = _limit(512, "connections of a worker")
    max_connections_per_client: int = _limit(256, "connections of a worker from one address")
    grace_s: float = _limit(30.0, "seconds for requests in flight after SIGTERM")


class IgnoredFields:
    """Counts and logs fields that no slot reads. It is thread-safe.

    `counts` holds the first MOST_IGNORED names, with at most IGNORED_LENGTH characters of each and
    "?" for what cannot be printed. Further names are counted together as OTHER_FIELDS. Each name of
    `counts` is logged once.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, field: object, count: int = 1) -> None:
        name = "".join(c if c.isprintable() else "?" for c in str(field)[:IGNORED_LENGTH])
        with self._lock:
            if name not in self.counts and len(self.counts) >= MOST_IGNORED:
                name = OTHER_FIELDS
            is_new = name not in self.counts
            self.counts[name] = self.counts.get(name, 0) + count
        if is_new:
            log.warning("no slot reads a field %r: it is ignored, and counted", name)


class Counters:
    """The rows of all workers. Create it before the workers are forked."""

    def __init__(self, workers: int) -> None:
        self.rows = np.frombuffer(mmap.mmap(-1, workers * _ROW.itemsize), _ROW, workers)

    def count(self, worker: int, path: str, status: int, seconds: float) -> None:
        row = self.rows[worker]
        endpoint = _endpoint(path)
        row["requests"][endpoint, STATUSES.index(status if status in STATUSES else 0)] += 1
        if ENDPOINTS[endpoint] in _PREDICTS:
            row["seconds"] += seconds
            row["buckets"][bisect.bisect_left(BUCKETS_S, seconds)] += 1
            if status == 200 and row["event_time"]:
                staleness = max(time.time() - row["event_time"], 0.0)
                row["staleness"] += staleness
                row["staleness_buckets"][bisect.bisect_left(STALENESS_S, staleness)] += 1

    def ignored(self, worker: int) -> dict[str, int]:
        """How often a worker and those before it ignored each field."""
        row = self.rows[worker]
        pairs = zip(row["ignored_names"].tolist(), row["ignored"].tolist(), strict=True)
        return {name.decode(): int(count) for name, count in pairs if count}

    def set_ignored(self, worker: int, counts: Mapping[str, int]) -> None:
        """counts: those of `ignored`, in their order, then further ones."""
        row = self.rows[worker]
        for at, (name, count) in enumerate(dict(counts).items()):
            row["ignored_names"][at] = name.encode()
            row["ignored"][at] = count

    def text(self) -> str:
        """The counters of all workers in Prometheus' text format 0.0.4."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        rows = self.rows.copy()
        yield from _head("requests_total", "counter", "Requests answered.")
        requests = rows["requests"].sum(axis=0)
        for e, s in np.argwhere(requests):
            code = STATUSES[s] or "other"
            yield (
                f'paddlebox_requests_total{{path="{ENDPOINTS[e]}",code="{code}"}} '
                f"{requests[e, s]:.0f}"
            )
        about = "Time of requests for predictions."
        yield from _histogram("predict_seconds", about, BUCKETS_S, rows["buckets"], rows["seconds"])
        about = "Age of the newest event that a prediction has learnt from."
        counts, total = rows["staleness_buckets"], rows["staleness"]
        yield from _histogram("staleness_seconds", about, STALENESS_S, counts, total)
        yield from _head("instances_total", "counter", "Instances predicted.")
        yield f"paddlebox_instances_total {rows['instances'].sum():.0f}"
        yield from _head("ignored_fields_total", "counter", "Fields that no slot reads.")
        ignored = Counter[str]()
        for worker in range(len(rows)):
            ignored.update(self.ignored(worker))
        for name, count in ignored.items():
            label = name.replace("\\", r"\\").replace('"', r"\"")
            yield f'paddlebox_ignored_fields_total{{name="{label}"}} {count}'
        ready = [worker for worker, row in enumerate(rows) if row["version"] > 0]
        ages = np.maximum(time.time() - rows["created_at"], 0)
        for name, kind, about, values, workers in (
            ("waiting", "gauge", "Predictions queued or running.", rows["waiting"], None),
            ("worker_starts_total", "counter", "Starts of workers.", rows["starts"], None),
            ("version", "gauge", "The version that a worker shows.", rows["version"], ready),
            ("generation_age_seconds", "gauge", "Age of that version's export.", ages, ready),
        ):
            yield from _head(name, kind, about)
            for worker in range(len(rows)) if workers is None else workers:
                yield f'paddlebox_{name}{{worker="{worker}"}} {values[worker]:.0f}'


def _histogram(
    name: str, about: str, bounds: Sequence[float], counts: np.ndarray, total: np.ndarray
) -> Iterator[str]:
    """counts, total: of each worker, by bucket, and their sums."""
    yield from _head(name, "histogram", about)
    below = counts.sum(axis=0).cumsum()
    for bound, count in zip([*map(str, bounds), "+Inf"], below, strict=True):
        yield f'paddlebox_{name}_bucket{{le="{bound}"}} {count:.0f}'
    yield f"paddlebox_{name}_sum {total.sum():.6f}"
    yield f"paddlebox_{name}_count {below[-1]:.0f}"


def is_v2(path: str) -> bool:
    """Whether a path is one of the Open Inference Protocol (kserve.py)."""
    return path == "/v2" or path.startswith("/v2/")


def _endpoint(path: str) -> int:
    if is_v2(path):
        path = _INFER if path.endswith("/infer") else "/v2"
    return ENDPOINTS.index(path if path in ENDPOINTS else "other")


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP paddlebox_{name} {about}"
    yield f"# TYPE paddlebox_{name} {kind}"
