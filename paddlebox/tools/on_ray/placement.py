"""Reservation: the nodes of a Ray cluster on which the ranks of a job run.

Letters: N = nodes of the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddlebox.errors import RankError

_LOOK_S = 0.2
_GRANTED_S = 10.0  # until other nodes are chosen
_NODE_ID = "ray.io/node-id"  # a label that Ray gives each node


@dataclass(frozen=True)
class Demand:
    """What a job asks of the cluster."""

    nodes: int
    ranks: int  # of each node
    cpus: int  # of each rank
    wait_s: float  # how long the job waits for them

    @property
    def cpus_of_node(self) -> int:
        return self.ranks * self.cpus


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    id: str
    address: str
    cpus: float
    free: float

    def __str__(self) -> str:
        return f"{self.address}: {self.free:g} of {self.cpus:g} CPUs"


def choose(nodes: Sequence[Node], demand: Demand, before: Sequence[str]) -> list[str]:
    """(N) the ids of the nodes of a job, in the order of ranks; empty if there are too few.

    Nodes that the job had before keep their place as far as possible, because they have the stores
    of its ranks.

    Args:
        nodes: the living nodes.
        demand: what the job asks for.
        before: ids of its nodes so far, in the order of ranks.
    """
    fitting = [node.id for node in nodes if node.free >= demand.cpus_of_node]
    chosen = sorted(fitting, key=lambda node: (node not in before, node))[: demand.nodes]
    if len(chosen) < demand.nodes:
        return []
    others = iter([node for node in chosen if node not in before])
    return [node if node in chosen else next(others) for node in before or [""] * demand.nodes]


class Reservation:
    """A placement group with one bundle for each node.

    Args:
        ray: the module.
        demand: what the job asks for.
        interrupted: whether to stop waiting.
        say: called with a line of the log when it begins to wait.
    """

    def __init__(
        self,
        ray: Any,
        demand: Demand,
        interrupted: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._ray, self._demand, self._interrupted, self._say = ray, demand, interrupted, say
        self.group: Any = None
        #: (N) ids of the nodes that are or were reserved, in the order of ranks.
        self.nodes: list[str] = []

    def hold(self, until: float) -> bool:
        """Reserve nodes, unless the reserved ones are alive.

        Args:
            until: value of time.monotonic() at which to give up.

        Returns: False if it was interrupted.

        Raises:
            RankError: Ray has not enough resources. The message names what it has.
        """
        if self.group is not None and self.alive():
            return True
        waits = False
        while not self._interrupted():
            nodes = self._living()
            chosen = choose(nodes, self._demand, self.nodes)
            if chosen and self._reserve(chosen):
                return True
            if time.monotonic() > until:
                raise RankError(
                    f"Ray has not enough resources within {self._demand.wait_s:g} s: "
                    f"{self._compared(nodes)}: add nodes, or ask for less (--nodes, "
                    "--ranks-per-node, --cpus-per-rank)"
                )
            if not waits:
                self._say(f"waits for resources of Ray: {self._compared(nodes)}")
            waits = True
            time.sleep(_LOOK_S)
        return False

    def release(self) -> None:
        if self.group is not None:
            self._ray.util.remove_placement_group(self.group)
            self.group = None

    def alive(self) -> bool:
        """Whether Ray counts all reserved nodes as alive. It notices a loss some seconds late."""
        return {*self.nodes} <= {node.id for node in self._living()}

    def _living(self) -> list[Node]:
        """The living nodes. The CPUs that this job has reserved count as free.

        Ray has no public function for the free resources of each node.
        """
        free: Mapping[str, Mapping[str, float]] = (
            self._ray._private.state.available_resources_per_node()
        )
        found = []
        for node in self._ray.nodes():
            if node["Alive"]:
                id_, cpus = node["NodeID"], node["Resources"].get("CPU", 0.0)
                reserved = self._demand.cpus_of_node if self.group and id_ in self.nodes else 0.0
                left = min(cpus, free.get(id_, {}).get("CPU", 0.0) + reserved)
                found.append(Node(id_, node["NodeManagerAddress"], cpus, left))
        return found

    def _reserve(self, nodes: list[str]) -> bool:
        """Reserve nodes. Returns False if Ray does not grant them soon."""
        self.release()
        bundle = {"CPU": self._demand.cpus_of_node}
        self.group = self._ray.util.placement_group(
            [bundle] * len(nodes),
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: node} for node in nodes],
        )
        until = time.monotonic() + _GRANTED_S
        while not self._interrupted() and time.monotonic() < until:
            if self.group.wait(1):
                self.nodes = nodes
                return True
        self.release()
        return False

    def _compared(self, nodes: Sequence[Node]) -> str:
        return (
            f"expected {self._demand.nodes} nodes with {self._demand.cpus_of_node} free CPUs each, "
            f"found {', '.join(map(str, nodes)) or 'no node'}"
        )
