"""Which ranks share a host, and the bytes that a rank sends to others, by their content."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox.store.table_exchange import Exchanged

if TYPE_CHECKING:
    from paddlebox.ranks.world import World


def hosts_of(size: int) -> list[str]:
    """(R) the host of each rank, as the launcher names it; without a launcher, one for all."""
    endpoints = [e for e in os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",") if e]
    hosts = [endpoint.rsplit(":", 1)[0] for endpoint in endpoints]
    return hosts if len(hosts) == size else [""] * size


class Traffic:
    """What this rank sends to others. What it sends to itself does not count. hosts: (R) of the
    ranks, by name."""

    def __init__(self, rank: int, hosts: Sequence[str]) -> None:
        self._rank, self._hosts = rank, hosts
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
            if self._hosts[rank] != self._hosts[self._rank]:
                between += array.nbytes
        with self._lock:
            self.sent[what] += sent
            if between:
                self.between_nodes[what] += between

    def now(self) -> dict[str, Counter[str]]:
        with self._lock:
            return {"sent": Counter(self.sent), "between_nodes": Counter(self.between_nodes)}


class ExchangedByRanks(Exchanged):
    """As of now. traffic: of the open tables."""

    def __init__(self, traffic: Traffic, world: World) -> None:
        self._traffic, self._world, self._sent = traffic, world, traffic.now()
        found = world.channel_counters().items()
        #: Seconds and waits, by channel. Bytes are counted by content instead.
        self._times = {
            what: {channel: counters[what] for channel, counters in found}
            for what in ("seconds", "waiting_seconds", "waits")
        }
        self.counters = {
            f"exchange_{what}_{channel}": value
            for what, of_channels in self._times.items()
            for channel, value in of_channels.items()
        }

    def report(
        self, dense_bytes: int, steps: int, samples: int, instances: int
    ) -> Mapping[str, Any]:
        self._traffic.sent["dense"] = dense_bytes
        now = ExchangedByRanks(self._traffic, self._world)
        spent = {
            what: {channel: value - self._times[what][channel] for channel, value in of.items()}
            for what, of in now._times.items()
        }
        mine = {
            "counts": {name: dict(now._sent[name] - self._sent[name]) for name in now._sent},
            "own": {"samples": instances, **spent},
        }
        sums: dict[str, Counter[str]] = {name: Counter() for name in now._sent}
        by_rank = []
        for text in self._world.gather_bytes(json.dumps(mine).encode()):
            theirs = json.loads(text)
            for name, counts in theirs["counts"].items():
                sums[name].update(counts)
            by_rank.append({**theirs["own"], "sent_bytes": sum(theirs["counts"]["sent"].values())})
        total = sum(sums["sent"].values())
        return {
            "sent_bytes": dict(sums["sent"]),
            "between_nodes_bytes": dict(sums["between_nodes"]),
            "bytes_per_step": total / max(1, steps),
            "bytes_per_sample": total / max(1, samples),
            "by_rank": by_rank,
            **spent,
        }
