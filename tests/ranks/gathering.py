"""`Group.gather` of ranks that are threads, without anything else of a job."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tests.conftest import PATIENCE_S

_T = TypeVar("_T")
Gather = Callable[[str, Any], list[Any]]


def on_ranks(size: int, work: Callable[[int, Gather], _T]) -> list[_T]:
    """What `work` gives on each rank, with its `gather`."""
    brought: dict[tuple[str, int], list[Any]] = {}
    barrier = threading.Barrier(size)

    def gather_of(rank: int) -> Gather:
        calls: Counter[str] = Counter()

        def gather(what: str, mine: Any) -> list[Any]:
            calls[what] += 1
            of_all = brought.setdefault((what, calls[what]), [None] * size)  # atomic
            of_all[rank] = mine
            barrier.wait(PATIENCE_S)
            return list(of_all)

        return gather

    with ThreadPoolExecutor(size) as pool:
        jobs = [pool.submit(work, rank, gather_of(rank)) for rank in range(size)]
        return [job.result() for job in jobs]
