"""What would R ranks do? A model on paper, of what was measured on few.

    python benchmarks/scale_model.py                         # the tables of docs/scale.md
    python benchmarks/scale_model.py --ranks build/ranks.json    # beside benchmarks/ranks.py

Letters: R = ranks, B = batch of a rank, u = unique rows of a batch, D = embedx_dim, K = unique
feasigns of a rank's part of a pass. Every rate is of one rank unless it says node.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_GATHERS_A_STEP = 1 / 8  # row ids are asked for 8 batches at a time (ranks/step_planner.py)
_SWAPS = 2  # rows before a step, gradients after it


@dataclass(frozen=True)
class Work:
    """What is trained."""

    batch: int = 2048  # B
    unique: float = 41_000.0  # u, of 26 slots at Zipf 1.05
    dim: int = 16  # D
    dense_parameters: int = 450_000
    rows: float = 1e8  # of the whole model
    row_bytes: int = 108  # at rest: D 16, AdaGrad, and the key
    keys: float = 1e6  # K
    pass_samples: float = 2e6  # of a rank
    wire: float = 1.0  # bytes of a value on the way, of float32's

    @property
    def step_bytes(self) -> float:
        """Rows, gradients and ids of a step."""
        return self.unique * (2 * 4 * (3 + self.dim) * self.wire + 4)


@dataclass(frozen=True)
class Machine:
    """Where. Messages between ranks of a node and of two nodes differ."""

    samples_per_s: float = 16_000.0  # of a rank that exchanges nothing, beside as many others
    ranks_a_node: int = 4
    message_s: float = 3e-4  # one pair's swap of nothing, Python and Gloo
    memory_bytes_per_s: float = 3.5e9  # between two ranks of a node: 64 MB in 18 ms
    wire_bytes_per_s: float = 3.0e9  # of a node's network card
    wire_s: float = 5e-5  # and its latency
    store_s: float = 1.2e-4  # asking the job's TCPStore what one rank has written
    store_turn_s: float = 1e-5  # a request in the store, which has one thread
    disk_read_per_s: float = 2.7e9  # of a node
    disk_write_per_s: float = 1.7e9
    spread: float = 0.03  # of a step's time from rank to rank, standard deviation
    pairwise: bool = True  # every two ranks swap, one after the other; False: one call for all
    overlap: float = 0.0  # share of the exchange that goes on while the dense part computes


@dataclass(frozen=True)
class Predicted:
    """Seconds are of a step."""

    ranks: int
    compute_s: float
    exchange_s: float  # rows and gradients, without what is overlapped
    messages_s: float  # their fixed cost
    dense_s: float
    store_s: float
    wait_s: float  # for the slowest
    staging_share: (
        float  # of a pass's time, what its rows need of the disk: above 1 it is the limit
    )
    bytes_a_sample: float  # that a rank sends
    node_bytes_per_s: float  # that leave a node
    rows_bytes: float  # at rest, of a node
    connections: int  # of a rank

    @property
    def step_s(self) -> float:
        parts = (self.compute_s, self.exchange_s, self.messages_s, self.dense_s)
        return (sum(parts) + self.store_s + self.wait_s) * max(1.0, self.staging_share)

    def samples_per_s(self, batch: int) -> float:
        return self.ranks * batch / self.step_s

    @property
    def share(self) -> float:
        """Of the samples a second of as many ranks that exchange nothing."""
        return self.compute_s / self.step_s


def predict(ranks: int, work: Work, machine: Machine) -> Predicted:
    """Of R ranks in step."""
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
    messages = _SWAPS * turns * latency
    dense_bytes = 4 * work.dense_parameters * 2 * (ranks - 1) / ranks
    dense = dense_bytes / machine.memory_bytes_per_s
    if nodes > 1:
        dense = dense_bytes / machine.wire_bytes_per_s
    dense += 2 * math.log2(ranks) * latency if ranks > 1 else 0.0
    # Each of R ranks asks for what each has written, one after the other, in two requests; the
    # store answers all of them one by one.
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
        3 * 2 * (ranks - 1),
    )  # fmt: skip
    leaving = outside * on_node + (dense_bytes if nodes > 1 else 0.0)  # a ring crosses once
    return replace(result, node_bytes_per_s=leaving / result.step_s)


def fitted(figures: Mapping[str, Any], work: Work, machine: Machine) -> Machine:
    """With the message's cost that 2 ranks show, all else as it is."""
    low, high = 0.0, 0.1
    measured = figures["2"]["share"]["median"]
    base = replace(machine, samples_per_s=figures["2"]["of_copies"]["median"] / 2)
    for _ in range(60):
        middle = (low + high) / 2
        found = predict(2, work, replace(base, message_s=middle)).share
        low, high = (middle, high) if found > measured else (low, middle)
    return replace(base, message_s=low)


def check(path: Path, work: Work, machine: Machine) -> list[str]:
    """Measured beside predicted, of a file of benchmarks/ranks.py."""
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


#: The job that docs/scale.md carries on paper: 64 nodes of 8 GPUs, 10^11 rows.
LARGE = Work(batch=4096, unique=60_000, dense_parameters=5_000_000, rows=1e11, keys=4e6,
             pass_samples=4e6)  # fmt: skip
TODAY = Machine(ranks_a_node=8, samples_per_s=100_000, wire_bytes_per_s=25e9,
                disk_read_per_s=10e9, disk_write_per_s=6e9)  # fmt: skip
ONE_CALL = replace(TODAY, pairwise=False, message_s=1e-4, memory_bytes_per_s=50e9, overlap=0.5)
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
    """Of docs/scale.md, by their headings."""
    return {
        "As it is": table(LARGE, TODAY),
        "One call for all ranks, half of it hidden": table(LARGE, ONE_CALL),
        "And no store in steps, and int8 rows": table(SMALL_BYTES, NO_STORE),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=Path, help="what benchmarks/ranks.py has written")
    parser.add_argument(
        "--store-s", type=float, default=Machine.store_s, help="for --ranks: a word of one rank"
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
