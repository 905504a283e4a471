"""Writes a trace of all threads, for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

from paddlebox.store.files import store_errors

MAX_EVENTS = 200_000  # about 25 MB of JSON


class Tracer:
    """Collects the events of all threads. It keeps the newest `max_events`, so that the size of the
    file is bounded for a run of any length.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        # (name, category, thread, begin ns, length ns, pass); appending to a deque takes no lock.
        self._events: deque[tuple[str, str, str, int, int, int]] = deque(maxlen=max_events)
        self._added = 0

    def add(
        self, name: str, category: str, begin_ns: int, end_ns: int, pass_number: int = 0
    ) -> None:
        """Add an event of the calling thread. begin_ns, end_ns: from time.perf_counter_ns."""
        # Threads are identified by name: a new thread with the name of an ended one continues its
        # line.
        thread = threading.current_thread().name
        self._added += 1  # not atomic: the reported number may be too small
        self._events.append((name, category, thread, begin_ns, end_ns - begin_ns, pass_number))

    def write(self, path: Path) -> None:
        """Write the trace in the JSON object format of Chrome's trace events.

        Raises: StoreError if the file cannot be written.
        """
        process = os.getpid()
        events = list(self._events)
        start = min((event[3] for event in events), default=0)
        threads = {name: tid for tid, name in enumerate(sorted({e[2] for e in events}), 1)}
        lines: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": tid, "args": {"name": name}}
            for name, tid in threads.items()
        ]
        for name, category, thread, begin, length, number in events:
            lines.append(
                {
                    "ph": "X",
                    "name": name,
                    "cat": category,
                    "pid": process,
                    "tid": threads[thread],
                    "ts": (begin - start) / 1e3,  # microseconds
                    "dur": length / 1e3,
                    "args": {"pass": number},
                }
            )
        dropped = max(0, self._added - len(events))
        content = {
            "displayTimeUnit": "ms",
            "otherData": {"events_dropped": dropped},
            "traceEvents": lines,
        }
        with store_errors(str(path), "write the trace"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
