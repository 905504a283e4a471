"""Reservation: the nodes of a Ray cluster on which the ranks of a job run.

Letters: N = nodes of the job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddlebox.errors import RankError

_LOOK_S = 0.2
_WATCH_S = 2.0  # between two looks for further nodes
_GRANTED_S = 10.0  # until other nodes are chosen
_NODE_ID = "ray.io/node-id"  # a label that Ray gives each node


@dataclass(frozen=True)
class Demand:
    """What a job asks of the cluster."""

    least: int  # nodes
    most: int
    ranks: int  # of each node
    cpus: int  # of each rank
    wait_s: float  # how long the job waits for the fewest nodes
    settle_s: float  # how long a node must be missing, or must be there, until their number changes

    @property
    def cpus_of_node(self) -> int:
        return self.ranks * self.cpus

    def __str__(self) -> str:
        nodes = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{nodes} nodes with {self.cpus_of_node} free CPUs each"


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    id: str
    address: str
    cpus: float
    free: float

    def __str__(self) -> str:
        return f"{self.address}: {self.free:g} of {self.cpus:g} CPUs"


def choose(
    nodes: Sequence[Node], demand: Demand, most: int, before: Sequence[str], last: Container[str]
) -> list[str]:
    """The ids of up to `most` nodes that have room; those that the job has come first.

    Args:
        nodes: the living nodes.
        demand: what the job asks for.
        before: ids of the nodes that the job has.
        last: ids of nodes that are only chosen if there are too few others.
    """
    fitting = [node for node in nodes if node.free >= demand.cpus_of_node]
    fitting.sort(key=lambda one: (one.id not in before, one.id in last, one.address, one.id))
    return [node.id for node in fitting[:most]]


def placed(chosen: Sequence[str], before: Sequence[str]) -> list[str]:
    """(N) the chosen nodes, in the order of ranks.

    Nodes that the job had before keep their places, because they have the stores of its ranks.
    Others take the places of lost nodes first. Places that nobody takes are left out.

    Args:
        chosen: ids of N nodes.
        before: ids of earlier nodes of the job, in the order of ranks.
    """
    others = iter([node for node in chosen if node not in before])
    places = [*before, *[""] * (len(chosen) - len(before))]
    found = [node if node in chosen else next(others, "") for node in places]
    return [node for node in found if node]


class Places:
    """Where the nodes of a job were, for a train_on_ray.py that goes on with the job.

    Ray's GCS keeps it, in an interface that Ray does not call public.

    Args:
        ray: the module.
        job: tells the job from others of the cluster.
    """

    def __init__(self, ray: Any, job: str) -> None:
        self._kv = ray.experimental.internal_kv
        self._key = f"paddlebox nodes of {job}".encode()

    def read(self) -> dict[int, list[str]]:
        """Number of nodes -> (N) ids of the last ones, in the order of ranks; the newest last."""
        found = self._kv._internal_kv_get(self._key)
        return {len(nodes): nodes for nodes in json.loads(found or b"[]")}

    def write(self, places: Mapping[int, list[str]]) -> None:
        text = json.dumps([*places.values()])
        self._kv._internal_kv_put(self._key, text.encode(), overwrite=True)


class Reservation:
    """A placement group with one bundle for each node.

    The number of nodes changes between `demand.least` and `demand.most`.

    Args:
        ray: the module.
        demand: what the job asks for.
        places: of the job.
        interrupted: whether to stop waiting.
        say: called with lines of the log.
    """

    def __init__(
        self,
        ray: Any,
        demand: Demand,
        places: Places,
        interrupted: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._ray, self._demand, self._interrupted, self._say = ray, demand, interrupted, say
        self._places = places
        self.group: Any = None
        self._of_size = places.read()
        #: (N) ids of the nodes that are or were reserved, in the order of ranks.
        self.nodes = next(reversed(self._of_size.values()), [])
        self._wanted = demand.most  # number of nodes
        self._former: list[str] = []  # the nodes before the job grew; empty: it has not
        self._refused = set[str]()  # nodes on which the ranks failed when the job grew
        self._since: dict[str, float] = {}  # node that the job could take -> since when
        self._look_at = 0.0

    def hold(self, until: float) -> bool:
        """Reserve nodes, unless the reserved ones are alive and enough.

        It waits for as many nodes as the job had, or should grow to, for `settle_s`. Then fewer are
        enough.

        Args:
            until: value of time.monotonic() at which to give up.

        Returns: False if it was interrupted.

        Raises:
            RankError: Ray has not enough resources. The message names what it has.
        """
        if len(self.nodes) == self._wanted and self.group is not None and self.alive():
            return True
        demand, waits = self._demand, False
        fewer_from = min(until, time.monotonic() + demand.settle_s)
        while not self._interrupted():
            nodes = self._living()
            chosen = choose(nodes, demand, self._wanted, self.nodes, self._refused)
            late = time.monotonic() > fewer_from
            if len(chosen) >= (demand.least if late else self._wanted) and self._reserve(chosen):
                return True
            if time.monotonic() > until:
                raise RankError(
                    f"Ray has not enough resources within {demand.wait_s:g} s: "
                    f"{self._compared(nodes)}: add nodes, or ask for less (--nodes, "
                    "--ranks-per-node, --cpus-per-rank)"
                )
            if not waits:
                self._say(f"waits for resources of Ray: {self._compared(nodes)}{self._patience()}")
            waits = True
            time.sleep(_LOOK_S)
        return False

    def _patience(self) -> str:
        if self._wanted == self._demand.least:
            return ""
        return (
            f"; it wants {self._wanted}, and goes on with fewer after {self._demand.settle_s:g} s"
        )

    # ---- another number of nodes

    def watch(self) -> None:
        """Look for nodes that the job could take. Call it often: it looks every few seconds."""
        now = time.monotonic()
        if len(self.nodes) == self._demand.most or now < self._look_at:
            return
        self._look_at = now + _WATCH_S
        self._since = {node: self._since.get(node, now) for node in self._spare()}

    def _spare(self) -> list[str]:
        demand = self._demand
        chosen = choose(self._living(), demand, demand.most, self.nodes, self._refused)
        return [node for node in chosen if node not in self.nodes and node not in self._refused]

    def settled(self) -> bool:
        """Whether a node that the job could take has had room for `settle_s`."""
        now = time.monotonic()
        return any(now - since >= self._demand.settle_s for since in self._since.values())

    def grow(self) -> None:
        """Let the next `hold` reserve the nodes that the job could take, too."""
        self._former, self._since = self._former or self.nodes, {}
        self._wanted = min(self._demand.most, len(self.nodes) + len(self._spare()))

    def keep(self) -> None:
        """The ranks have committed a pass on the nodes."""
        self._former = []

    def give_back(self) -> bool:
        """Let the next `hold` reserve the nodes that the job had before it grew.

        The nodes that it had taken are not taken again, unless there are too few others.

        Returns: False if it has not grown.
        """
        former, self._former = self._former, []
        new = {*self.nodes} - {*former}
        if not former or not new:
            return False
        self._refused |= new
        self.release()
        self.nodes, self._wanted = former, len(former)
        return True

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

    def _reserve(self, chosen: Sequence[str]) -> bool:
        """Reserve nodes. Returns False if Ray does not grant them soon."""
        self.release()
        # The stores of so many ranks are where the last nodes of this number have put them.
        nodes = placed(chosen, self._of_size.get(len(chosen), self.nodes))
        bundle = {"CPU": self._demand.cpus_of_node}
        self.group = self._ray.util.placement_group(
            [bundle] * len(nodes),
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: node} for node in nodes],
        )
        until = time.monotonic() + _GRANTED_S
        while not self._interrupted() and time.monotonic() < until:
            if self.group.wait(1):
                if self._wanted > len(nodes):
                    self._say(f"goes on with {len(nodes)} nodes instead of {self._wanted}")
                self.nodes, self._wanted = nodes, len(nodes)
                self._of_size.pop(len(nodes), None)
                self._of_size[len(nodes)] = nodes  # the newest last
                self._places.write(self._of_size)
                return True
        self.release()
        return False

    def _compared(self, nodes: Sequence[Node]) -> str:
        return f"expected {self._demand}, found {', '.join(map(str, nodes)) or 'no node'}"
