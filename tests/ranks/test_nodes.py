"""Which ranks share a host, what a config may ask of them, and which bytes count."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.config.trainer import RanksConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks import World
from paddlebox.ranks.traffic import ExchangedByRanks, Traffic, hosts_of
from tests.ranks.threads import coordination


@pytest.mark.parametrize(
    ("endpoints", "hosts"),
    [
        ("a:1,a:2,b:1,b:2", ["a", "a", "b", "b"]),
        ("a:1,b:1,a:2,b:2", ["a", "b", "a", "b"]),
        ("[::1]:1,[::1]:2,b:1,c:1", ["[::1]", "[::1]", "b", "c"]),
        ("", [""] * 4),
        ("a:1,b:1", [""] * 4),
    ],
)
def test_hosts_are_those_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch, endpoints: str, hosts: list[str]
) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", endpoints)
    assert hosts_of(4) == hosts


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
    traffic = Traffic(1, ["b", "a", "a", "b"])
    world: Any = SimpleNamespace(gather_bytes=lambda mine: [mine, mine], channel_counters=dict)
    before = ExchangedByRanks(traffic, world)
    out = [np.zeros(size, np.uint8) for size in (1, 10, 100, 1000)]
    traffic.add("rows", out)
    traffic.add("ids", out[::-1])
    assert traffic.sent == {"rows": 1101, "ids": 1011}
    assert traffic.between_nodes == {"rows": 1001, "ids": 1001}
    line = before.report(dense_bytes=0, steps=4, samples=64, instances=7)
    none: dict[str, Any] = {"seconds": {}, "waiting_seconds": {}, "waits": {}}
    assert line["sent_bytes"] == {"rows": 2202, "ids": 2022}
    assert line["bytes_per_step"] == (2202 + 2022) / 4
    assert line["bytes_per_sample"] == (2202 + 2022) / 64
    assert line["by_rank"] == [{"samples": 7, "sent_bytes": 1101 + 1011, **none}] * 2
    assert json.dumps(line)


def test_arrays_of_ranks_may_have_the_names_of_options() -> None:
    def work(world: World) -> dict[int, dict[str, np.ndarray]]:
        return world.arrays_of_others(lambda: {"file": np.full(2, world.rank), "w": np.zeros(0)})

    first, second = coordination(2, work)
    assert (first[1]["file"].tolist(), second[0]["file"].tolist()) == ([1, 1], [0, 0])
    assert {rank: [*arrays] for rank, arrays in first.items()} == {1: ["file", "w"]}
