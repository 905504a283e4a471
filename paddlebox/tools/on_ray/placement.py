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
_WATCH_S = 2.0  # between two looks for more nodes
_GRANTED_S = 10.0  # until other nodes are chosen
_GRANTED_MORE_S = 5.0  # the same for nodes with which a job grows; its ranks train meanwhile
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
        nodes = f"{self.least} to " * (self.least != self.most) + counted(self.most, "node")
        return f"{nodes} with {self.cpus_of_node} free CPUs each"


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    id: str
    address: str
    cpus: float
    free: float

    def __str__(self) -> str:
        return f"{self.address}: {self.free:g} of {self.cpus:g} CPUs"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def choose(
    nodes: Sequence[Node],
    demand: Demand,
    most: int,
    before: Sequence[str],
    refused: Container[str] = (),
) -> list[str]:
    """The ids of up to `most` living nodes that have room and are not refused. Nodes that the job
    has (`before`) come first."""
    need = demand.cpus_of_node
    fitting = [node for node in nodes if node.free >= need and node.id not in refused]
    fitting.sort(key=lambda node: (node.id not in before, node.address, node.id))
    return [node.id for node in fitting[:most]]


def placed(chosen: Sequence[str], before: Sequence[str]) -> list[str]:
    """(N) the chosen nodes, in the order of ranks. Nodes that the job had before keep their places,
    because they have the stores of its ranks. Others take the places of lost nodes first. Places
    that nobody takes are left out."""
    others = iter([node for node in chosen if node not in before])
    places = [*before, *[""] * (len(chosen) - len(before))]
    return [n for node in places if (n := node if node in chosen else next(others, ""))]


class Places:
    """The nodes of a job, so that the command finds them after a restart. Ray's GCS keeps it, in an
    interface that Ray does not call public. job: a name of the job that is unique in the cluster.
    """

    def __init__(self, ray: Any, job: str) -> None:
        self._kv = ray.experimental.internal_kv
        self._key = f"paddlebox nodes of {job}".encode()

    def read(self) -> dict[int, list[str]]:
        """Number of nodes -> (N) ids of the last ones, in the order of ranks; the newest last."""
        text = self._kv._internal_kv_get(self._key)
        return {len(nodes): nodes for nodes in json.loads(text or b"[]")}

    def write(self, places: Mapping[int, list[str]]) -> None:
        text = json.dumps([*places.values()])
        self._kv._internal_kv_put(self._key, text.encode(), overwrite=True)


class Reservation:
    """The nodes of a job: a placement group with one bundle for each node, and another one for the
    nodes of each growth. Their number changes between `demand.least` and `demand.most`.
    interrupted: whether to stop waiting. say: called with lines of the log."""

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
        self._groups: list[tuple[Any, Sequence[str]]] = []  # each with the nodes of its bundles
        self._of_size = places.read()
        #: (N) ids of the nodes that are or were reserved, in the order of ranks.
        self.nodes = next(reversed(self._of_size.values()), [])
        goes_on = demand.least <= len(self.nodes) <= demand.most and self.alive()
        self._wanted = len(self.nodes) if goes_on else demand.most  # number of nodes
        self._former: list[str] = []  # the nodes before an unconfirmed growth; empty: there is none
        self._refused = set[str]()  # nodes on which the ranks failed when the job grew
        self._since: dict[str, float] = {}  # node that the job could take -> since when
        self._look_at = 0.0

    def hold(self, until: float) -> bool:
        """Reserve nodes, unless the reserved ones are alive. Returns False if it was interrupted.

        For `settle_s`, it waits for as many nodes as the job had, and for room on these nodes. Then
        others and fewer are enough, and also nodes on which the ranks have failed if there are too
        few others. At the time.monotonic() `until` it gives up.

        Raises: RankError if Ray has not enough resources.
        """
        if self._groups and self.alive():
            return True
        if self._former:  # it does not wait for a node that was lost while the job grows
            left = {*self.nodes} & {node.id for node in self._living()}
            self._wanted, self._former = max(len(self._former), len(left)), []
        demand, waits = self._demand, False
        fewer_from = min(until, time.monotonic() + demand.settle_s)
        while not self._interrupted():
            nodes = self._living()
            chosen = choose(nodes, demand, self._wanted, self.nodes, self._refused)
            late = time.monotonic() > fewer_from
            if late and len(chosen) < demand.least:
                chosen = choose(nodes, demand, demand.least, chosen)
            if self._is_enough(chosen, nodes, late) and self._reserve(chosen):
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

    def _is_enough(self, chosen: Sequence[str], nodes: Sequence[Node], late: bool) -> bool:
        if late:
            return len(chosen) >= self._demand.least
        # Of a train_on_ray.py that was killed, Ray frees the CPUs some seconds later.
        earlier = {*self.nodes} & {node.id for node in nodes}
        remaining = len(earlier & {*chosen})
        return len(chosen) >= self._wanted and remaining >= min(len(earlier), self._wanted)

    def _patience(self) -> str:
        if self._wanted == self._demand.least:
            return ""
        after = f"goes on with fewer after {self._demand.settle_s:g} s"
        return f"; it wants {self._wanted}, and {after}"

    def bundle(self, at: int) -> tuple[Any, int]:
        """The placement group of the `at`-th node, and the index of its bundle."""
        node = self.nodes[at]
        return next((group, list(of).index(node)) for group, of in self._groups if node in of)

    def address_of(self, node: str) -> str:
        """The address of a node, also if it was lost."""
        addresses = {n["NodeID"]: n["NodeManagerAddress"] for n in self._ray.nodes()}
        return str(addresses.get(node, node))

    # ---- more nodes

    def watch(self) -> None:
        """Look for nodes that the job could take. Call it often: it looks every few seconds."""
        now = time.monotonic()
        if len(self.nodes) == self._demand.most or now < self._look_at:
            return
        self._look_at = now + _WATCH_S
        self._since = {node: self._since.get(node, now) for node in self._spare()}

    def _spare(self) -> list[str]:
        chosen = choose(self._living(), self._demand, self._demand.most, self.nodes, self._refused)
        return [node for node in chosen if node not in self.nodes]

    def grow(self) -> bool:
        """Reserve the nodes that the job could take, too, if one has had room for `settle_s`. The
        job keeps the nodes that it has. Returns whether Ray has granted the new ones."""
        now = time.monotonic()
        if not any(now - since >= self._demand.settle_s for since in self._since.values()):
            return False
        self._since = {}
        more = self._spare()
        if not more or not self.alive() or not self._grant(more, _GRANTED_MORE_S):
            return False
        self._former, self.nodes = self.nodes, self._placed([*self.nodes, *more])
        self._wanted = len(self.nodes)
        return True

    @property
    def grown(self) -> bool:
        """Whether the job has grown, and this is not confirmed."""
        return bool(self._former)

    def confirm_growth(self) -> None:
        """The rows have begun to move: the job does not go back."""
        self._former = []
        self._remember()

    def undo_growth(self, failed: Container[int]) -> list[str]:
        """Go back to the nodes before an unconfirmed growth, and refuse the nodes that failed: at
        these places in the order of ranks, or all new ones if none is known. It does not go back
        after the loss of one of the former nodes, or if only they have failed.

        Returns: the addresses of the refused nodes; empty if it does not go back.
        """
        former, living = self._former, {node.id for node in self._living()}
        new = [node for node in self.nodes if node not in former]
        refused = [node for node in new if not failed or self.nodes.index(node) in failed]
        if not former or not refused or not living >= {*former}:
            return []
        self._refused |= {*refused}
        self._ray.util.remove_placement_group(self._groups.pop()[0])
        self.nodes, self._former, self._wanted = former, [], len(former)
        return [self.address_of(node) for node in refused]

    # ---- Ray

    def release(self) -> None:
        while self._groups:
            self._ray.util.remove_placement_group(self._groups.pop()[0])

    def alive(self) -> bool:
        """Whether Ray counts all reserved nodes as alive. It notices a loss some seconds late."""
        return {*self.nodes} <= {node.id for node in self._living()}

    def _living(self) -> list[Node]:
        """The living nodes. The CPUs that this job has reserved count as free. Ray has no public
        function for the free resources of each node."""
        free: Mapping[str, Mapping[str, float]] = (
            self._ray._private.state.available_resources_per_node()
        )
        own = {node for _, nodes in self._groups for node in nodes}
        living = []
        for node in self._ray.nodes():
            if node["Alive"]:
                id_, cpus = node["NodeID"], node["Resources"].get("CPU", 0.0)
                reserved = self._demand.cpus_of_node if id_ in own else 0.0
                left = min(cpus, free.get(id_, {}).get("CPU", 0.0) + reserved)
                living.append(Node(id_, node["NodeManagerAddress"], cpus, left))
        return living

    def _reserve(self, chosen: Sequence[str]) -> bool:
        """Reserve these nodes only. Returns False if Ray does not grant them soon."""
        self.release()
        if not self._grant(chosen, _GRANTED_S):
            return False
        if self._wanted > len(chosen):
            nodes = counted(len(chosen), "node")
            goes_on, starts = f"goes on with {nodes} instead of", f"starts with {nodes}; it wanted"
            self._say(f"{goes_on if self.nodes else starts} {self._wanted}")
        self._wanted, self.nodes = len(chosen), self._placed(chosen)
        self._refused -= {*chosen}  # it has to use them
        self._remember()
        return True

    def _grant(self, nodes: Sequence[str], limit_s: float) -> bool:
        """Add a placement group. Returns False if Ray does not grant it soon."""
        group = self._ray.util.placement_group(
            [{"CPU": self._demand.cpus_of_node}] * len(nodes),
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: node} for node in nodes],
        )
        until = time.monotonic() + limit_s
        while not self._interrupted() and time.monotonic() < until:
            if group.wait(1):
                self._groups.append((group, nodes))
                return True
        self._ray.util.remove_placement_group(group)
        return False

    def _placed(self, chosen: Sequence[str]) -> list[str]:
        """(N) the chosen nodes, in the order of ranks. With the same number of nodes as earlier,
        each node keeps its earlier place: its disk may have the stores of these ranks."""
        return placed(chosen, self._of_size.get(len(chosen), self.nodes))

    def _remember(self) -> None:
        self._of_size.pop(len(self.nodes), None)
        self._of_size[len(self.nodes)] = self.nodes  # the newest last
        self._places.write(self._of_size)

    def _compared(self, nodes: Sequence[Node]) -> str:
        return f"expected {self._demand}, found {', '.join(map(str, nodes)) or 'no node'}"
