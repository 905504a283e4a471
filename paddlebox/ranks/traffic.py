"""Which ranks share a node, and the bytes that a rank sends to others, by their content."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox.errors import ConfigError


def ranks_per_node(size: int) -> int:
    """The number of ranks on each host that the launcher names. The first host has the first ranks,
    and so on.

    Raises: ConfigError if hosts have different numbers of ranks.
    """
    endpoints = [e for e in os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",") if e]
    hosts = [endpoint.rsplit(":", 1)[0] for endpoint in endpoints]
    if len(hosts) != size:
        return size  # not started by the launcher: one node
    per_node = hosts.count(hosts[0])
    if any(
        hosts[rank] != hosts[rank - rank % per_node] for rank in range(size)
    ) or size != per_node * len(set(hosts)):
        raise ConfigError(
            f"the ranks' hosts are {', '.join(hosts)}: expected the same number of ranks on each "
            "node, one node after the other; launch each with the same --nproc_per_node"
        )
    return per_node


Sent = dict[str, Counter[str]]


class Traffic:
    """What this rank sends to others. What it sends to itself does not count."""

    def __init__(self, rank: int, per_node: int) -> None:
        self._rank, self._per_node = rank, per_node
        self._lock = threading.Lock()  # each channel has a thread
        self.sent: Counter[str] = Counter()
        self.between_nodes: Counter[str] = Counter()

    def add(self, what: str, out: Sequence[np.ndarray]) -> None:
        """Count an exchange. out: (R) the array for each rank."""
        sent = between = 0
        for rank, array in enumerate(out):
            if rank == self._rank:
                continue
            sent += array.nbytes
            if rank // self._per_node != self._rank // self._per_node:
                between += array.nbytes
        with self._lock:
            self.sent[what] += sent
            if between:
                self.between_nodes[what] += between

    def now(self) -> Sent:
        with self._lock:
            return {"sent": Counter(self.sent), "between_nodes": Counter(self.between_nodes)}


def traffic_of_pass(
    before: Sent,
    after: Sent,
    gather: Callable[[bytes], list[bytes]],
    steps: int,
    samples: int,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """What all ranks sent in a pass. Collective.

    Args:
        before, after: `Traffic.now` at the start and at the end of the pass.
        gather: `Coordinator.gather_bytes`.
        samples: number of samples on all ranks.
        own: other entries about this rank for `by_rank`.
    """
    mine = {name: dict(after[name] - before[name]) for name in after}
    sums: Sent = {name: Counter() for name in after}
    by_rank = []
    for text in gather(json.dumps({"counts": mine, "own": own}).encode()):
        theirs = json.loads(text)
        for name, counts in theirs["counts"].items():
            sums[name].update(counts)
        sent = sum(theirs["counts"]["sent"].values())
        by_rank.append({**theirs["own"], "sent_bytes": sent})
    total = sum(sums["sent"].values())
    return {
        "sent_bytes": dict(sums["sent"]),
        "between_nodes_bytes": dict(sums["between_nodes"]),
        "bytes_per_step": total / max(1, steps),
        "bytes_per_sample": total / max(1, samples),
        "by_rank": by_rank,
    }
