"""What do many ranks send each other, and how long does it take?

    sudo python benchmarks/many_ranks.py [--trial]
    python benchmarks/many_ranks.py --model

Counting: 16, 64 and 512 ranks are threads of this process. They plan and exchange as in a job, with
batches of Criteo and Zipf ids (peers/counted_exchange.py). It counts the exchanges and the messages
that a step waits for, one after the other, the requests to the job's store, the messages of a host,
and the bytes between hosts. The sum of --dense values takes two rounds. Bytes are compared with the
least that the format needs: the row ids, the rows with one bit each, and their gradients, without
any size, count or other head.

Timing: 16 small ranks in 4 network namespaces, each with a host name of its own. Each namespace
sends at most --mbit, and a switch delays every frame by --delay-us (peers/forwarder.py). The ranks
exchange rows without computing (peers/exchange_rank.py). The exchange between hosts and the former
exchange between pairs of ranks take turns in the same processes, with sizes that the receivers
know, as in a step, and with sizes that they do not. The processor share of the switch is printed:
the ranks lack it.

The model calculates what many ranks would reach, from measurements of few (docs/scale.md). --model
prints its table, and measures nothing.

Timing needs root, `ip`, `tc`, `unshare` and /dev/net/tun. Otherwise only counts are written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import report
from peers.counted_exchange import Batches, Setting, batches_of, counted, zipf_batches
from peers.forwarder import DEVICE
from peers.schemes import feasigns_of_criteo

HOSTS, RANKS_A_HOST = 4, 4
PORT = 29873
_LONGEST_S = 1800
_COMPARED = (
    ("pairs", "hosts"),
    ("pairs, sizes unknown", "hosts, sizes unknown"),
    ("one after the other", "at the same time"),
)
_MTU = 9000  # so that the switch has fewer frames to copy

# ---- the model of docs/scale.md

_EXCHANGES = 2  # of a step, after it has computed: gradients and rows
_AHEAD = 1.25  # of a step, while it computes: early rows; ids and late bits for 8 steps at a time
_AHEAD_ON_ONE_NODE = 0.125  # row ids for 8 steps at a time
_CONNECTIONS = 7  # with each peer: the channels of ranks/channel.py without parity, and control


@dataclass(frozen=True)
class Work:
    """The job: 26 slots on GPUs. R = ranks."""

    batch: int = 4096  # of a rank
    unique: float = 60_000.0  # rows of a batch
    dim: int = 16  # D
    dense_parameters: int = 5_000_000
    rows: float = 1e11  # of the whole model
    row_bytes: int = 108  # stored: D 16, AdaGrad, and the key
    keys: float = 4e6  # of a rank's part of a pass
    pass_samples: float = 4e6  # of a rank

    @property
    def step_bytes(self) -> float:
        """Bytes of rows, gradients and ids in a step."""
        return self.unique * (2 * 4 * (3 + self.dim) + 4)


@dataclass(frozen=True)
class Machine:
    """The machines. Messages within a node and between nodes cost different times."""

    ranks_a_node: int = 8
    samples_per_s: float = 100_000.0  # of a rank that exchanges nothing
    message_s: float = 3e-4  # an empty exchange of one pair, in Python and Gloo
    memory_bytes_per_s: float = 3.5e9  # between two ranks of a node: 64 MB in 18 ms
    wire_bytes_per_s: float = 25e9  # network card of a node
    wire_s: float = 5e-5  # latency of the network
    disk_read_per_s: float = 10e9  # of a node, in bytes
    disk_write_per_s: float = 6e9
    spread: float = 0.03  # relative standard deviation of a step's time between ranks


@dataclass(frozen=True)
class Predicted:
    """The prediction. All seconds are per step."""

    ranks: int
    compute_s: float
    ahead_s: float  # exchanges while the step computes
    rows_s: float  # rows and gradients, with their messages
    dense_s: float
    at_the_same_time: bool  # rows_s and dense_s
    messages: int  # that a step waits for, one after the other
    wait_s: float  # for the slowest rank
    staging_share: float  # disk time of a pass over its time; above 1, the disk is the limit
    node_bytes: float  # that leave a node in a step
    rows_bytes: float  # stored on a node
    connections: int  # with ranks of other nodes, of the rank that has most

    @property
    def step_s(self) -> float:
        return self.training_s * max(1.0, self.staging_share)

    @property
    def training_s(self) -> float:
        both = (self.rows_s, self.dense_s)
        exchange = max(both) if self.at_the_same_time else sum(both)
        return max(self.compute_s, self.ahead_s) + exchange + self.wait_s

    def samples_per_s(self, batch: int) -> float:
        return self.ranks * batch / self.step_s

    @property
    def share(self) -> float:
        """Samples/s, relative to as many ranks that exchange nothing."""
        return self.compute_s / self.step_s


def predict(ranks: int, work: Work = Work(), machine: Machine = Machine()) -> Predicted:
    """Predicts R synchronous ranks whose dense gradients are summed on the host. All rows of a step
    are late (ranks/plans.py)."""
    nodes = math.ceil(ranks / machine.ranks_a_node)
    on_node = min(ranks, machine.ranks_a_node)
    several = nodes > 1
    compute = work.batch / machine.samples_per_s
    latency = machine.message_s + (machine.wire_s if several else 0.0)
    # Of an exchange: to the ranks that exchange with the other nodes, with these nodes, and back.
    turns = 2 + math.ceil((nodes - 1) / on_node) if several else 1
    relays = min(on_node, nodes - 1)

    def moving(inside: float, outside: float) -> float:
        """Seconds for bytes that each rank sends to ranks of its node and of other nodes."""
        seconds = inside / machine.memory_bytes_per_s
        if several:  # all ranks of a node share its card, and the relays pass on what they send
            seconds += outside * on_node / machine.wire_bytes_per_s
            seconds += 2 * outside * on_node / relays / machine.memory_bytes_per_s
        return seconds

    rows_inside = work.step_bytes * (on_node - 1) / ranks
    rows_outside = work.step_bytes * (ranks - 1) / ranks - rows_inside
    values = 4 * work.dense_parameters  # in bytes
    # Each rank adds up a slice of its node, and a part of this slice of all nodes; then it collects
    # them. Two nodes exchange whole slices at once.
    dense_inside = 2 * values * (on_node - 1) / on_node
    dense_outside = 2 * values / on_node * (nodes - 1) / nodes
    of_rows = _EXCHANGES * turns
    of_sum = 2 + (min(nodes - 1, 2) * turns if several else 0)
    found = Predicted(
        ranks, compute, (_AHEAD if several else _AHEAD_ON_ONE_NODE) * turns * latency,
        moving(rows_inside, rows_outside) + of_rows * latency,
        moving(dense_inside, dense_outside) + of_sum * latency,
        several, max(of_rows, of_sum) if several else of_rows + of_sum,
        compute * machine.spread * math.sqrt(2 * math.log(ranks)), 0.0,
        (rows_outside + dense_outside) * on_node if several else 0.0,
        work.rows * work.row_bytes / nodes, _CONNECTIONS * math.ceil((nodes - 1) / on_node),
    )  # fmt: skip
    if ranks == 1:
        found = replace(found, ahead_s=0.0, rows_s=0.0, dense_s=0.0, messages=0)
    moved = work.keys * on_node * work.row_bytes
    staging = moved / machine.disk_read_per_s + moved / machine.disk_write_per_s
    training = work.pass_samples / work.batch * found.training_s
    return replace(found, staging_share=staging / training)


def model() -> str:
    """The table of docs/scale.md."""
    lines = [
        "| ranks | M samples/s | share | ms: compute | rows | dense | slowest | messages "
        "| disk | GB/s a node | TB a node | connections |",
        "|" + "---|" * 12,
    ]
    for ranks in (1, 8, 16, 64, 128, 512):
        found = predict(ranks)
        parts = [found.compute_s, found.rows_s, found.dense_s, found.wait_s]
        cells = " | ".join(f"{part * 1e3:.1f}" for part in parts)
        lines.append(
            f"| {ranks} | {found.samples_per_s(Work.batch) / 1e6:.2f} | {found.share:.2f} | "
            f"{cells} | {found.messages} | {found.staging_share:.2f} | "
            f"{found.node_bytes / found.step_s / 1e9:.1f} | {found.rows_bytes / 1e12:.2f} | "
            f"{found.connections} |"
        )
    return "\n".join(lines)


# ---- counts and times


def missing() -> str:
    """The reason why the timing cannot run here; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if Path("/dev/net/tun").exists() else "there is no /dev/net/tun"


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def address(host: int) -> str:
    return f"10.231.8.{host + 1}"


@contextmanager
def hosts(mbit: int, delay_us: float, shares: list[float]) -> Iterator[list[str]]:
    """Namespaces that a switch connects. Appends the switch's processor share to `shares`."""
    names = [f"pbxm{number}-{os.getpid()}" for number in range(HOSTS)]
    switch = None
    try:
        for name in names:
            call("ip", "netns", "add", name)
        program = str(Path(__file__).parent / "peers/forwarder.py")
        words = [sys.executable, program, "--delay-us", str(delay_us), *names]
        switch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert switch.stdout is not None
        if switch.stdout.readline() != "ready\n":
            raise report.UnavailableError("the switch does not start")
        for number, name in enumerate(names):
            inside = ("ip", "netns", "exec", name)
            call(*inside, "ip", "addr", "add", f"{address(number)}/24", "dev", DEVICE)
            call(*inside, "ip", "link", "set", DEVICE, "mtu", str(_MTU))
            for device in ("lo", DEVICE):
                call(*inside, "ip", "link", "set", device, "up")
            rate = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
            call(*inside, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *rate)
        yield names
        switch.send_signal(signal.SIGTERM)
        said, _ = switch.communicate(timeout=10)
        shares.append(json.loads(said.splitlines()[-1])["processor_share"])
    finally:
        if switch is not None and switch.poll() is None:
            switch.kill()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def start_host(folder: Path, number: int, name: str, program: list[str]) -> subprocess.Popen[bytes]:
    """Starts the launcher of a host, with a host name of its own."""
    lines = [f"{address(host)} many{host}\n" for host in range(HOSTS)]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
    script = f'hostname many{number} && mount --bind {folder}/hosts /etc/hosts && exec "$@"'
    inside = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "sh", "-c", script, "sh"]
    launch = [
        *(sys.executable, "-m", "paddle.distributed.launch", "--master", f"{address(0)}:{PORT}"),
        *("--nnodes", str(HOSTS), "--rank", str(number), "--nproc_per_node", str(RANKS_A_HOST)),
        *("--log_dir", str(folder / f"log{number}")),
    ]
    with open(folder / f"host{number}.log", "wb") as log:
        return subprocess.Popen(
            [*inside, *launch, *program],
            cwd=report.ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(report.ROOT)},
            stdout=log,
            stderr=log,
        )


def timed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The seconds of an exchange in both ways."""
    out, shares = folder / "seconds.json", list[float]()
    program = [
        *(str(Path(__file__).parent / "peers/exchange_rank.py"), str(out)),
        *("--rows", str(options.rows), "--exchanges", str(options.exchanges)),
        *("--turns", str(options.turns), "--dense", str(options.dense)),
    ]
    with hosts(options.mbit, options.delay_us, shares) as names:
        jobs = [start_host(folder, number, name, program) for number, name in enumerate(names)]
        deadline = time.monotonic() + _LONGEST_S
        try:
            while any(job.poll() is None for job in jobs) and time.monotonic() < deadline:
                if any(job.poll() for job in jobs):
                    break
                time.sleep(0.2)
        finally:
            for job in jobs:
                if job.poll() is None:
                    job.terminate()
    if any(job.wait() for job in jobs):
        logs = [path.read_text()[-1500:] for path in sorted(folder.glob("log*/workerlog.*"))]
        raise RuntimeError("a host failed:\n" + "\n".join(logs))
    found: dict[str, Any] = json.loads(out.read_text())
    return {**found, "switch_processor_share": shares[0]}


def count(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    rows, _ = feasigns_of_criteo()
    figures: dict[str, Any] = {}
    goals = []
    for ranks, per_host in options.sizes:
        kinds: dict[str, Batches] = {
            "criteo": batches_of(rows, ranks, options.batch),
            "zipf": zipf_batches(options.batch),
        }
        for kind, batches in kinds.items():
            setting = Setting(
                ranks, per_host, options.steps, bare=options.bare, dense=options.dense
            )
            found = counted(setting, batches)
            name, of_model = f"{ranks} ranks, {kind}", predict(ranks, Work(), Machine(per_host))
            share = of_model.share
            figures[name] = {**vars(found), "over_least": found.over_least, "share": share}
            print(
                f"{name}: {found.waits:.2f} waits, {found.messages_waited_for:g} messages waited "
                f"for and {found.requests:g} requests a step, {found.messages:.1f} messages and "
                f"{found.sent_bytes:,.0f} bytes a host and step, {found.over_least:.4f} of the "
                f"least; share of ideal {share:.2f}"
            )
            most = 2 * (ranks // per_host - 1)
            goals += [
                report.at_most(f"{name}: waits a step", found.waits, 2),
                report.at_most(
                    f"{name}: messages that a step waits for",
                    found.messages_waited_for,
                    of_model.messages,
                ),
                report.at_least(f"{name}: share of ideal", share, 0.6),
                report.at_most(f"{name}: requests a step", found.requests, 0),
                report.at_most(
                    f"{name}: messages of a host and exchange", found.most_messages, most
                ),
                report.at_most(f"{name}: bytes over the least", found.over_least, 1.05),
            ]
    return figures, goals


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    figures, goals = count(options)
    faster = "16 ranks: pairs / hosts, seconds of an exchange"
    if why := missing():
        goals.append(report.not_measured(report.at_least(faster, 0, 2), why))
        return figures, goals
    figures["exchange"] = found = timed(options, folder)
    ratios = report.ratios(found["seconds"]["pairs"], found["seconds"]["hosts"])
    goals.append(report.at_least(faster, ratios, 2))
    compared = {
        f"{slow} / {fast}": report.spread(
            report.ratios(found["seconds"][slow], found["seconds"][fast])
        )
        for slow, fast in _COMPARED
    }
    for name, seconds in found["seconds"].items():
        print(f"{name}: {report.spread(seconds)['median'] * 1e3:.2f} ms")
    for name, ratio in compared.items():
        print(f"{name}: {ratio}")
    print(f"the switch used {found['switch_processor_share']:.2f} of a processor")
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", action="store_true", help="only print the table of the model")
    parser.add_argument("--trial", action="store_true", help="few ranks, and few exchanges")
    parser.add_argument("--batch", type=int, default=256, help="instances of a rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bare", type=float, default=0.5, help="share of rows without an embedx")
    parser.add_argument("--dense", type=int, default=100_000, help="values of a sum")
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--delay-us", type=float, default=250.0)
    parser.add_argument("--rows", type=int, default=100, help="rows for each two ranks")
    parser.add_argument("--exchanges", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    report.output(parser, "many_ranks")
    options = parser.parse_args()
    if options.model:
        print(model())
        return 0
    options.sizes = [(16, 4), (64, 8), (512, 8)]
    if options.trial:
        options.sizes, options.exchanges, options.turns = [(16, 4)], 5, 2
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch", "model"))


if __name__ == "__main__":
    report.run(main)
