"""How would many ranks perform? A model on paper, from measurements with few ranks.

    python benchmarks/scale_model.py                         # the tables of docs/scale.md
    python benchmarks/scale_model.py --ranks build/ranks.json    # compares with benchmarks/ranks.py

Letters: R = ranks, B = batch of a rank, u = unique rows of a batch, D = embedx_dim, K = unique
feasigns of a rank's part of a pass. Rates are per rank unless they are said to be per node.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_GATHERS_A_STEP = 1 / 8  # row ids are requested for 8 batches at a time (ranks/step_planner.py)
_SWAPS = 2  # exchanges per step: rows before it, gradients after it
# Exchanges between hosts and step, counted by many_ranks.py: rows (early and late), gradients, and
# row ids with the bits of late rows for 8 steps. A sum of many values takes two rounds. If the
# dense gradients are on GPUs, as in the large job, the gradients of rows are exchanged after it.
_EXCHANGES, _SUM_ROUNDS = 3.25, 2
_CHANNELS = 5  # ranks/channel.py, without that of sums
_CHANNELS_BEFORE = 4  # a pair of ranks had a connection and a TCPStore for each


@dataclass(frozen=True)
class Work:
    """The job."""

    batch: int = 2048  # B
    unique: float = 41_000.0  # u, with 26 slots at Zipf 1.05
    dim: int = 16  # D
    dense_parameters: int = 450_000
    rows: float = 1e8  # of the whole model
    row_bytes: int = 108  # stored: D 16, AdaGrad, and the key
    keys: float = 1e6  # K
    pass_samples: float = 2e6  # per rank
    wire: float = 1.0  # bytes of a value that is sent, relative to float32

    @property
    def step_bytes(self) -> float:
        """Bytes of rows, gradients and ids in a step."""
        return self.unique * (2 * 4 * (3 + self.dim) * self.wire + 4)


@dataclass(frozen=True)
class Machine:
    """The machines. Messages within a node and between nodes cost different times."""

    samples_per_s: float = 16_000.0  # of a rank that exchanges nothing, with others on the node
    ranks_a_node: int = 4
    message_s: float = 3e-4  # an empty exchange of one pair, in Python and Gloo
    memory_bytes_per_s: float = 3.5e9  # between two ranks of a node: 64 MB in 18 ms
    wire_bytes_per_s: float = 3.0e9  # network card of a node
    wire_s: float = 5e-5  # latency of the network
    store_s: float = 1.2e-4  # asking the job's TCPStore for the value of one rank
    store_turn_s: float = 1e-5  # a request within the store, which has one thread
    disk_read_per_s: float = 2.7e9  # of a node, in bytes
    disk_write_per_s: float = 1.7e9
    spread: float = 0.03  # relative standard deviation of a step's time between ranks
    pairwise: bool = True  # pairs of ranks exchange one after the other; False: one call for all
    overlap: float = 0.0  # share of the exchange that overlaps with the dense part
    by_hosts: bool = False  # each two nodes exchange one message, through one rank of each


@dataclass(frozen=True)
class Predicted:
    """The prediction. All seconds are per step."""

    ranks: int
    compute_s: float
    exchange_s: float  # rows and gradients, without the part that overlaps
    messages_s: float  # fixed cost of their messages
    dense_s: float
    store_s: float
    wait_s: float  # for the slowest rank
    staging_share: float  # disk time of a pass over its time; above 1, the disk is the limit
    bytes_a_sample: float  # sent by a rank
    node_bytes_per_s: float  # that leave a node
    rows_bytes: float  # stored on a node
    connections: int  # per rank, with ranks of other nodes

    @property
    def step_s(self) -> float:
        parts = (self.compute_s, self.exchange_s, self.messages_s, self.dense_s)
        return (sum(parts) + self.store_s + self.wait_s) * max(1.0, self.staging_share)

    def samples_per_s(self, batch: int) -> float:
        return self.ranks * batch / self.step_s

    @property
    def share(self) -> float:
        """Samples/s, relative to as many ranks that exchange nothing."""
        return self.compute_s / self.step_s


def predict(ranks: int, work: Work, machine: Machine) -> Predicted:
    """Predicts R synchronous ranks."""
    nodes = math.ceil(ranks / machine.ranks_a_node)
    on_node = min(ranks, machine.ranks_a_node)
    compute = work.batch / machine.samples_per_s
    of_rank = work.step_bytes * (ranks - 1) / ranks
    inside = work.step_bytes * (on_node - 1) / ranks
    outside = of_rank - inside  # all ranks of a node share its card
    moving = inside / machine.memory_bytes_per_s
    moving += outside * on_node / machine.wire_bytes_per_s
    turns = ranks - 1 if machine.pairwise else math.ceil(math.log2(ranks)) if ranks > 1 else 0
    latency = machine.message_s + (machine.wire_s if nodes > 1 else 0.0)
    messages, sum_turns = _SWAPS * turns * latency, 2 * math.log2(ranks)
    if machine.by_hosts and ranks > 1:
        # Within a node, to the rank that exchanges with the other node and back. The ranks of a
        # node share the other nodes. Sums go through one rank.
        within = 2 if nodes > 1 else 1
        messages = _EXCHANGES * (within + math.ceil((nodes - 1) / on_node)) * latency
        sum_turns = within + _SUM_ROUNDS * (nodes - 1)
        moving += (within - 1) * 2 * outside / machine.memory_bytes_per_s
    dense_bytes = 4 * work.dense_parameters * 2 * (ranks - 1) / ranks
    dense = dense_bytes / machine.memory_bytes_per_s
    if nodes > 1:
        dense = dense_bytes / machine.wire_bytes_per_s
    dense += sum_turns * latency if ranks > 1 else 0.0
    # Each of the R ranks asks for the value of each rank, one after the other, in two requests. The
    # store answers all requests one by one.
    asking = max(ranks * machine.store_s, 2 * ranks * ranks * machine.store_turn_s)
    store = _GATHERS_A_STEP * asking if ranks > 1 else 0.0
    wait = compute * machine.spread * math.sqrt(2 * math.log(ranks)) if ranks > 1 else 0.0
    steps = work.pass_samples / work.batch
    hidden = 1.0 - machine.overlap
    training = steps * (compute + hidden * (moving + messages) + dense + store + wait)
    moved = work.keys * on_node * work.row_bytes
    staging = moved / machine.disk_read_per_s + moved / machine.disk_write_per_s
    sent = of_rank + dense_bytes
    result = Predicted(
        ranks, compute, hidden * moving, hidden * messages, dense, store, wait,
        staging / training, sent / work.batch, 0.0, work.rows * work.row_bytes / nodes,
        _connections(ranks, nodes, on_node, machine),
    )  # fmt: skip
    leaving = outside * on_node + (dense_bytes if nodes > 1 else 0.0)  # a ring crosses once
    return replace(result, node_bytes_per_s=leaving / result.step_s)


def _connections(ranks: int, nodes: int, on_node: int, machine: Machine) -> int:
    """Of the rank that has most. By hosts, each peer has one for control, too."""
    if not machine.by_hosts:
        return _CHANNELS_BEFORE * 2 * (ranks - on_node)
    return (_CHANNELS + 1) * math.ceil((nodes - 1) / on_node) + 2 * (nodes - 1)


def fitted(figures: Mapping[str, Any], work: Work, machine: Machine) -> Machine:
    """The machine with the cost of a message that the measurement of 2 ranks gives."""
    low, high = 0.0, 0.1
    measured = statistics.median(figures["2"]["shares"])
    base = replace(machine, samples_per_s=figures["2"]["of_copies"]["median"] / 2)
    for _ in range(60):
        middle = (low + high) / 2
        found = predict(2, work, replace(base, message_s=middle)).share
        low, high = (middle, high) if found > measured else (low, middle)
    return replace(base, message_s=low)


def check(path: Path, work: Work, machine: Machine) -> list[str]:
    """Lines that compare the figures of benchmarks/ranks.py with the prediction."""
    content = json.loads(path.read_text())
    figures = content["figures"]
    work = replace(work, batch=content["settings"]["batch"])
    machine = fitted(figures, work, machine)
    lines = [f"a message's fixed cost, from 2 ranks: {machine.message_s * 1e3:.2f} ms"]
    for ranks in sorted(int(name) for name in figures if name.isdigit()):
        alone = figures[str(ranks)]["of_copies"]["median"] / ranks
        found = predict(ranks, work, replace(machine, samples_per_s=alone))
        measured = figures[str(ranks)]["samples_per_s"]["median"]
        lines.append(
            f"{ranks} ranks: measured {measured:,.0f} samples/s, predicted "
            f"{found.samples_per_s(work.batch):,.0f} "
            f"({found.samples_per_s(work.batch) / measured - 1:+.0%})"
        )
    return lines


#: The job that docs/scale.md calculates: 64 nodes of 8 GPUs, 10^11 rows.
LARGE = Work(batch=4096, unique=60_000, dense_parameters=5_000_000, rows=1e11, keys=4e6,
             pass_samples=4e6)  # fmt: skip
PAIRS = Machine(ranks_a_node=8, samples_per_s=100_000, wire_bytes_per_s=25e9,
                disk_read_per_s=10e9, disk_write_per_s=6e9)  # fmt: skip
BY_HOSTS = replace(PAIRS, by_hosts=True, store_s=0.0, store_turn_s=0.0)
ONE_CALL = replace(PAIRS, pairwise=False, message_s=1e-4, memory_bytes_per_s=50e9, overlap=0.5)
NO_STORE = replace(ONE_CALL, store_s=0.0, store_turn_s=0.0)
SMALL_BYTES = replace(LARGE, wire=0.31)


def table(work: Work, machine: Machine) -> str:
    lines = [
        "| ranks | M samples/s | share | ms: compute | rows | messages | dense | store | slowest "
        "| disk | GB/s a node | TB a node | connections |",
        "|" + "---|" * 13,
    ]
    for ranks in (1, 8, 16, 64, 128, 512):
        found = predict(ranks, work, machine)
        parts = [found.compute_s, found.exchange_s, found.messages_s, found.dense_s]
        parts += [found.store_s, found.wait_s]
        cells = [f"{part * 1e3:.1f}" for part in parts]
        lines.append(
            f"| {ranks} | {found.samples_per_s(work.batch) / 1e6:.2f} | {found.share:.2f} | "
            + " | ".join(cells)
            + f" | {found.staging_share:.2f} | {found.node_bytes_per_s / 1e9:.1f} | "
            f"{found.rows_bytes / 1e12:.2f} | {found.connections} |"
        )
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """The tables of docs/scale.md by heading."""
    return {
        "By pairs of ranks": table(LARGE, PAIRS),
        "By hosts": table(LARGE, BY_HOSTS),
        "One call for all ranks, half of it hidden": table(LARGE, NO_STORE),
        "And int8 rows": table(SMALL_BYTES, NO_STORE),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=Path, help="output file of benchmarks/ranks.py")
    parser.add_argument(
        "--store-s",
        type=float,
        default=Machine.store_s,
        help="for --ranks: seconds of asking the TCPStore for the value of one rank",
    )
    options = parser.parse_args()
    if options.ranks is not None:
        machine = replace(Machine(), store_s=options.store_s)
        print("\n".join(check(options.ranks, Work(), machine)))
        return 0
    for heading, text in tables().items():
        print(f"### {heading}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
