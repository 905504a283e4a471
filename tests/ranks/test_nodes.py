"""Which ranks share a node, what a config may ask of them, and which bytes count."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.config.trainer import RanksConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks.traffic import ExchangedByRanks, Traffic, ranks_per_node


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [(["a", "a", "b", "b"], 2), (["a", "b", "c"], 1), (["a", "a"], 2), ([], 4)],
)
def test_nodes_are_the_hosts_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], expected: int
) -> None:
    endpoints = ",".join(f"{host}:{6000 + rank}" for rank, host in enumerate(hosts))
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", endpoints)
    assert ranks_per_node(len(hosts) or 4) == expected


@pytest.mark.parametrize("hosts", [["a", "a", "b"], ["a", "b", "a", "b"], ["a", "b", "b", "a"]])
def test_nodes_of_different_sizes_or_in_pieces_are_refused(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str]
) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", ",".join(f"{host}:1" for host in hosts))
    with pytest.raises(ConfigError, match="--nproc_per_node"):
        ranks_per_node(len(hosts))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"rows": "float8"}, "rows"),
        ({"parity": 1}, "parity is 1"),
    ],
)
def test_what_nothing_would_read_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RanksConfig.model_validate(values)


def test_bytes_to_others_count_and_those_to_other_nodes_as_well() -> None:
    traffic = Traffic(1, per_node=2)
    world: Any = SimpleNamespace(gather_bytes=lambda mine: [mine, mine], channel_counters=dict)
    before = ExchangedByRanks(traffic, world)
    out = [np.zeros(size, np.uint8) for size in (1, 10, 100, 1000)]
    traffic.add("rows", out)
    traffic.add("ids", out[::-1])
    assert traffic.sent == {"rows": 1101, "ids": 1011}
    assert traffic.between_nodes == {"rows": 1100, "ids": 11}
    line = before.report(dense_bytes=0, steps=4, samples=64, instances=7)
    none: dict[str, Any] = {"seconds": {}, "waiting_seconds": {}, "waits": {}}
    assert line["sent_bytes"] == {"rows": 2202, "ids": 2022}
    assert line["bytes_per_step"] == (2202 + 2022) / 4
    assert line["bytes_per_sample"] == (2202 + 2022) / 64
    assert line["by_rank"] == [{"samples": 7, "sent_bytes": 1101 + 1011, **none}] * 2
    assert json.dumps(line)
