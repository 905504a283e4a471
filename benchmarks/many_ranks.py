"""What do many ranks send each other, and how long does it take?

    sudo python benchmarks/many_ranks.py [--trial]

Counting: 16, 64 and 512 ranks are threads of this process. They plan and exchange as in a job, with
batches of Criteo and of Zipf ids (counted_exchange.py). It counts the exchanges that a step waits
for, one after the other, the requests to the job's store, the messages of a host, and the bytes
between hosts. The sum of --dense values takes two rounds. Bytes are compared with the least that
the format needs: the row ids, the rows with one bit each, and their gradients, without any size,
count or other head.

Timing: 16 small ranks in 4 network namespaces, each with a host name of its own. Each namespace
sends at most --mbit, and a switch delays every frame by --delay-us (peers/forwarder.py). The ranks
exchange rows without computing (peers/exchange_rank.py). The exchange between hosts and the former
exchange between pairs of ranks take turns in the same processes, with sizes that the receivers
know, as in a step, and with sizes that they do not. The processor share of the switch is printed:
the ranks lack it.

Timing needs root, `ip`, `tc`, `unshare` and /dev/net/tun. Otherwise only counts are written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report
import scale_model
from counted_exchange import Batches, Setting, batches_of, counted, zipf_batches
from peers.forwarder import DEVICE
from ranks_bytes import criteo

MEASURES = (*report.RANKS, "benchmarks/counted_exchange.py", "tests/ranks/threads.py")
HOSTS, RANKS_A_HOST = 4, 4
PORT = 29873
_LONGEST_S = 1800
_COMPARED = (
    ("pairs", "hosts"),
    ("pairs, sizes unknown", "hosts, sizes unknown"),
    ("one after the other", "at the same time"),
)
_MTU = 9000  # so that the switch has fewer frames to copy


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


def share_of_ideal(ranks: int) -> float:
    """From the constants of scale_model.py for its large job, and the exchanges counted here."""
    return scale_model.predict(ranks, scale_model.LARGE, scale_model.BY_HOSTS).share


def count(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    rows, _ = criteo()
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
            name, share = f"{ranks} ranks, {kind}", share_of_ideal(ranks)
            figures[name] = {**vars(found), "over_least": found.over_least, "share": share}
            print(
                f"{name}: {found.waits:.2f} waits and {found.requests:g} requests a step, "
                f"{found.messages:.1f} messages and {found.sent_bytes:,.0f} bytes a host and step, "
                f"{found.over_least:.4f} of the least; share of ideal {share:.2f}"
            )
            most = 2 * (ranks // per_host - 1)
            goals += [
                report.at_most(f"{name}: waits a step", found.waits, 3),
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
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument(
        "--out", type=Path, default=report.ROOT / "benchmarks/results/many_ranks.json"
    )
    options = parser.parse_args()
    options.sizes = [(16, 4), (64, 8), (512, 8)]
    if options.trial:
        options.sizes, options.exchanges, options.turns = [(16, 4)], 5, 2
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
