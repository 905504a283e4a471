"""Routes between the GPUs of a machine, computed from the output of `nvidia-smi topo -m`.

Two GPUs that NVLink connects exchange directly. Other pairs, such as half of the pairs of a cube
mesh, go through a third GPU with links to both, or through the host if there is none. In an
exchange every GPU sends to every other at the same time. So a route goes through the third GPU
whose busier link has the least load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from paddlebox.errors import ConfigError

_GPU = re.compile(r"GPU(\d+)$")
_LINK = re.compile(r"NV(\d+)$")
_BY_HOST = {"PIX", "PXB", "PHB", "NODE", "SYS"}  # PCIe, of growing length
_UNDERLINE = re.compile(r"\x1b\[[0-9;]*m")  # nvidia-smi underlines its header


@dataclass(frozen=True)
class Route:
    """A route from one GPU to another."""

    gpus: tuple[int, ...]  # from first to last: (a, b), or (a, c, b) over NVLink
    by_host: bool = False

    @property
    def kind(self) -> str:
        if self.by_host:
            return "host"
        return "one hop" if len(self.gpus) == 2 else "two hops"


@dataclass(frozen=True)
class Topology:
    """links: (N, N) number of NVLinks between GPUs a and b, in each direction."""

    links: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for a, row in enumerate(self.links):
            if len(row) != len(self.links):
                raise ConfigError(
                    f"GPU{a} has {len(row)} links of a topology of {len(self.links)} GPUs"
                )
        for a, b in self.pairs():
            if self.links[a][b] != self.links[b][a]:
                raise ConfigError(
                    f"GPU{a} has {self.links[a][b]} NVLinks to GPU{b}, and GPU{b} "
                    f"{self.links[b][a]} to GPU{a}: expected equal numbers"
                )

    @staticmethod
    def parse(text: str) -> Topology:
        """Read the matrix of `nvidia-smi topo -m`.

        Raises:
            ConfigError: the text is not such a matrix.
        """
        lines = [_UNDERLINE.sub("", line).split() for line in text.splitlines()]
        header = next((words for words in lines if words and _GPU.match(words[0])), [])
        count = sum(1 for word in header if _GPU.match(word))
        rows = [words for words in lines if words and _GPU.match(words[0])][1:]
        names = [f"GPU{number}" for number in range(count)]
        if not count or header[:count] != names or [words[0] for words in rows] != names:
            raise ConfigError(
                "a topology: expected the matrix that `nvidia-smi topo -m` prints, with a line for "
                f"each of {', '.join(names) or 'GPU0, GPU1, ...'}"
            )
        return Topology(
            tuple(
                tuple(_links(name, words[1:], other) for other in range(count))
                for name, words in zip(names, rows, strict=True)
            )
        )

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Every ordered pair of different GPUs."""
        for a in range(len(self.links)):
            for b in range(len(self.links)):
                if a != b:
                    yield a, b


def _links(name: str, cells: list[str], other: int) -> int:
    cell = cells[other] if other < len(cells) else ""
    if cell == "X" and name == f"GPU{other}":
        return 0
    link = _LINK.match(cell)
    if link is None and cell not in _BY_HOST:
        raise ConfigError(
            f"a topology: {name} to GPU{other} is {cell!r}, expected NV and a number, or one of "
            f"{', '.join(sorted(_BY_HOST))}"
        )
    return int(link[1]) if link else 0


def busy(
    topology: Topology, routes: Mapping[tuple[int, int], Route]
) -> dict[tuple[int, int], float]:
    """The load of the links from GPU a to GPU b, in units per link.

    Every GPU sends one unit to every other GPU.
    """
    load: dict[tuple[int, int], float] = {}
    for route in routes.values():
        if not route.by_host:
            for a, b in pairwise(route.gpus):
                load[a, b] = load.get((a, b), 0.0) + 1.0 / topology.links[a][b]
    return load


def choose_routes(topology: Topology) -> dict[tuple[int, int], Route]:
    """A route for every ordered pair. Every process computes the same routes."""
    links = topology.links
    routes = {(a, b): Route((a, b)) for a, b in topology.pairs() if links[a][b]}
    load = busy(topology, routes)
    for a, b in topology.pairs():
        if (a, b) in routes:
            continue
        thirds = [c for c in range(len(links)) if links[a][c] and links[c][b]]
        if not thirds:
            routes[a, b] = Route((a, b), by_host=True)
            continue

        def busiest(c: int, a: int = a, b: int = b) -> float:
            return max(load[a, c] + 1.0 / links[a][c], load[c, b] + 1.0 / links[c][b])

        c = min(thirds, key=busiest)  # the lowest of equal ones
        for leg in ((a, c), (c, b)):
            load[leg] += 1.0 / links[leg[0]][leg[1]]
        routes[a, b] = Route((a, c, b))
    return routes
