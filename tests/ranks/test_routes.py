"""Routes between the GPUs of a machine, from its topology."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlebox.errors import ConfigError
from paddlebox.ranks.routes import Topology, busy, choose_routes
from tests.conftest import tool

ROOT = Path(__file__).resolve().parents[2]

# A cube mesh of 8 V100, as nvidia-smi prints it.
CUBE_MESH = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tCPU Affinity\x1b[0m
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def of(*pairs: tuple[int, int, int], gpus: int) -> Topology:
    """pairs: (a, b, links)."""
    links = [[0] * gpus for _ in range(gpus)]
    for a, b, count in pairs:
        links[a][b] = links[b][a] = count
    return Topology(tuple(map(tuple, links)))


def test_a_cube_mesh_has_one_hop_where_there_is_a_link_and_two_elsewhere() -> None:
    topology = Topology.parse(CUBE_MESH)
    assert topology.links[0] == (0, 1, 1, 2, 2, 0, 0, 0)
    routes = choose_routes(topology)
    kinds = [route.kind for route in routes.values()]
    assert (kinds.count("one hop"), kinds.count("two hops"), kinds.count("host")) == (32, 24, 0)
    assert routes[0, 4].gpus == (0, 4)
    assert routes[0, 5].gpus in [(0, 1, 5), (0, 4, 5)]
    assert routes[0, 7].gpus in [(0, 3, 7), (0, 4, 7)]


def test_third_gpus_are_chosen_so_that_no_link_is_much_busier_than_it_must_be() -> None:
    topology = Topology.parse(CUBE_MESH)
    routes = choose_routes(topology)
    lowest = {
        pair: next(
            r
            for c in range(8)
            for r in [type(route)((pair[0], c, pair[1]))]
            if topology.links[pair[0]][c] and topology.links[c][pair[1]]
        )
        if route.kind == "two hops"
        else route
        for pair, route in routes.items()
    }
    assert max(busy(topology, routes).values()) < max(busy(topology, lowest).values())


def test_a_wide_link_is_preferred_to_a_narrow_one() -> None:
    topology = of((0, 1, 1), (1, 3, 1), (0, 2, 4), (2, 3, 4), gpus=4)
    assert choose_routes(topology)[0, 3].gpus == (0, 2, 3)


def test_a_switch_gives_one_hop_everywhere_and_no_links_the_host() -> None:
    full = choose_routes(of(*((a, b, 18) for a in range(8) for b in range(a)), gpus=8))
    assert {route.kind for route in full.values()} == {"one hop"}
    assert {route.kind for route in choose_routes(of(gpus=4)).values()} == {"host"}
    two_pairs = choose_routes(of((0, 1, 4), (2, 3, 4), gpus=4))
    assert two_pairs[0, 1].kind == "one hop"
    assert two_pairs[0, 2].kind == "host"
    assert choose_routes(of(gpus=1)) == {}


@given(st.integers(2, 6), st.data())
def test_every_pair_has_a_route_over_links_that_are_there(gpus: int, data: st.DataObject) -> None:
    count = st.integers(0, 3)
    pairs = [(a, b, data.draw(count)) for a in range(gpus) for b in range(a)]
    topology = of(*pairs, gpus=gpus)
    routes = choose_routes(topology)
    assert set(routes) == set(topology.pairs())
    for (a, b), route in routes.items():
        assert (route.gpus[0], route.gpus[-1]) == (a, b)
        third = any(topology.links[a][c] and topology.links[c][b] for c in range(gpus))
        if route.by_host:
            assert not topology.links[a][b]
            assert not third
        else:
            legs = zip(route.gpus, route.gpus[1:], strict=False)
            assert all(topology.links[c][d] for c, d in legs)
            assert len(route.gpus) == (2 if topology.links[a][b] else 3)
    assert choose_routes(topology) == routes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:0], "expected the matrix"),
        (lambda text: text.replace("GPU3\tNV2", "GPU9\tNV2"), "a line for each of GPU0, GPU1"),
        (lambda text: text.replace("GPU0\t X \tNV1", "GPU0\t X \tNVX"), "GPU0 to GPU1 is 'NVX'"),
        (lambda text: text.replace("GPU0\t X \tNV1", "GPU0\t X \tNV6"), "expected equal numbers"),
    ],
)
def test_text_that_is_not_a_topology_is_named_in_the_error(
    change: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Topology.parse(change(CUBE_MESH))


@pytest.mark.slow
def test_the_tool_prints_the_routes_of_what_it_reads() -> None:
    done = subprocess.run(
        [sys.executable, "tools/gpu_routes.py"],
        input=CUBE_MESH,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "one hop 32, two hops 24, host 0" in done.stdout
    bad = subprocess.run(
        [sys.executable, "tools/gpu_routes.py"],
        input="no GPUs here",
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert bad.returncode == 1
    assert "expected the matrix" in bad.stderr


def test_the_help_of_the_tool_says_what_it_is_for() -> None:
    done = tool("gpu_routes", "--help")
    assert done.returncode == 0
    assert "nvidia-smi topo -m | tools/gpu_routes.py" in done.stdout
