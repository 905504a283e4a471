"""Do two nodes give the result of one machine, at what rate, and which processes listen?

    sudo python benchmarks/two_nodes.py [--mbit 1000] [--paddles-launcher]

Each node is a network namespace with its own host name, address and run dir. A veth pair connects
them, and tc limits its rate. The job runs there with paddlebox.launch.bind_address, and on this
machine without namespaces. The rows must be equal. With more than two ranks, only the AUC of the
last pass is compared, because the dense gradients of a host are added first. While the job runs,
the script notes every socket that listens inside a namespace: none may listen on every address.
Paddle's own launcher does. Where the link is the limit, the job has at least 0.9
of the samples/s at which the node that sends more would send at the rate of the link all the time.

It needs root, `ip`, `tc`, `unshare` and `ss`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report

CONFIG = "configs/dnn_synthetic.yaml"
PASSES, ROWS = 4, 20_000
ADDRESSES = ("10.231.7.1", "10.231.7.2")
PORT = 29871
AUC_OFF = 1e-3
OF_LINK = 0.9
_LONGEST_S = 600


def missing() -> str:
    """The reason why this cannot run here; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc", "unshare", "ss") if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    name = f"pbx-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "ip netns add is not permitted"
    call("ip", "netns", "del", name)
    return ""


def call(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextmanager
def nodes(mbit: int) -> Iterator[list[str]]:
    """Two namespaces with a link of `mbit` Mbit/s between them; 0: no limit."""
    names = [f"pbx{node}-{os.getpid()}" for node in range(2)]
    ends = [f"pv{node}-{os.getpid() % 100000}" for node in range(2)]
    try:
        for name in names:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            inside = ("ip", "netns", "exec", name)
            call("ip", "link", "set", end, "netns", name)
            call(*inside, "ip", "addr", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                call(*inside, "ip", "link", "set", device, "up")
            if mbit:
                rate = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
                call(*inside, "tc", "qdisc", "add", "dev", end, "root", "tbf", *rate)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def command(folder: Path, run_dir: Path, options: argparse.Namespace) -> list[str]:
    """The command of a node."""
    ours = "paddlebox.launch.bind_address"
    return [
        sys.executable, "-m", "paddle.distributed.launch" if options.paddles_launcher else ours,
        "--master", f"{ADDRESSES[0]}:{PORT}", "--nnodes", "2",
        "--nproc_per_node", str(options.ranks), "--log_dir", f"{run_dir}/log",
        "tools/train.py", *settings(folder, run_dir),
    ]  # fmt: skip


def settings(folder: Path, run_dir: Path) -> list[str]:
    return [
        "-c", CONFIG, "--run-dir", str(run_dir / "run"), "-o",
        f"data.train_files=[{folder}/data/train-*.txt]",
        f"data.test_files=[{folder}/data/test.txt]", "data.files_per_pass=4",
        "trainer.dense_threads=1", "data.threads=1",
    ]  # fmt: skip


def start_node(folder: Path, node: int, name: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Starts a node in its namespace, with its own host name and its own folder as run dir."""
    own, shared = folder / f"node{node}", folder / "run_dir"
    for each in (own, shared):
        each.mkdir(parents=True, exist_ok=True)
    hosts = folder / f"hosts{node}"
    lines = [f"{address} node{at}\n" for at, address in enumerate(ADDRESSES)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    script = (
        f"hostname node{node} && mount --bind {hosts} /etc/hosts && "
        f'mount --bind {own} {shared} && exec "$@"'
    )
    inside = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "sh", "-c", script, "sh"]
    with open(folder / f"node{node}.log", "wb") as log:
        return subprocess.Popen(
            [*inside, *words],
            cwd=report.ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(report.ROOT)},
            stdout=log,
            stderr=log,
        )


def listening(name: str) -> set[tuple[str, str]]:
    """(address, process) of every TCP socket that listens in a namespace."""
    found = set()
    for line in call("ip", "netns", "exec", name, "ss", "-Hltnp").splitlines():
        words = line.split()
        pid = line.partition("pid=")[2].partition(",")[0]
        found.add((words[3].rpartition(":")[0], _role(pid)))
    return found


def _role(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return "?"
    launchers = {"paddle.distributed.launch", "paddlebox.launch.bind_address"}
    return "launcher" if launchers & set(words) else "rank"


def sent_bytes(name: str) -> int:
    text = call("ip", "netns", "exec", name, "cat", "/proc/net/dev")
    return sum(int(line.split()[9]) for line in text.splitlines() if line.strip().startswith("pv"))


def result(run_dir: Path) -> dict[str, Any]:
    summary = json.loads((run_dir / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(line["seconds"] for line in lines[1:])
    rates = [line["samples"] / line["seconds"] for line in lines[1:]]
    return {
        "digests": [summary["sparse_digest"], summary["dense_digest"]],
        "samples_per_s": sum(line["samples"] for line in lines[1:]) / seconds,
        "samples_per_s_of_passes": rates,
        "samples": summary["samples"],
        "auc": lines[-1]["metrics"]["auc"],
    }


def on_nodes(folder: Path, mbit: int, options: argparse.Namespace) -> dict[str, Any]:
    heard: set[tuple[str, str]] = set()
    with nodes(mbit) as names:
        words = command(folder, folder / "run_dir", options)
        jobs = [start_node(folder, node, name, words) for node, name in enumerate(names)]
        deadline = time.monotonic() + _LONGEST_S
        while any(job.poll() is None for job in jobs) and time.monotonic() < deadline:
            for name in names:
                heard |= listening(name)
            time.sleep(0.3)
        sent = [sent_bytes(name) for name in names]
        for node, job in enumerate(jobs):
            if job.poll() != 0:
                job.kill()
                text = (folder / f"node{node}.log").read_text()[-3000:]
                raise RuntimeError(f"node {node} ended with {job.poll()}:\n{text}")
    found = result(folder / "node0" / "run")
    wide = sorted({who for address, who in heard if address in ("0.0.0.0", "*", "[::]")})
    for node in range(2):
        shutil.rmtree(folder / f"node{node}")
    return {
        **found,
        "bytes_between_nodes_a_sample": sum(sent) / found["samples"],
        "link_samples_per_s": mbit * 1e6 / 8 * found["samples"] / max(sent),
        "listens": sorted(map(list, heard)),
        "listens_on_every_address": wide,
    }


def together(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the same ranks without namespaces."""
    run_dir = folder / "together"
    words = [sys.executable, "-m", "paddle.distributed.launch"]
    words += ["--nproc_per_node", str(2 * options.ranks), "--log_dir", f"{run_dir}/log"]
    subprocess.run(
        [*words, "tools/train.py", *settings(folder, run_dir)],
        cwd=report.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(report.ROOT)},
        check=True,
        capture_output=True,
    )
    return result(run_dir / "run")


def of_link(name: str, found: dict[str, Any], without: float) -> report.Goal:
    """without: samples/s without a limit."""
    carried = found["link_samples_per_s"]
    of_passes = [rate / carried for rate in found["samples_per_s_of_passes"]]
    goal = report.at_least(f"{name}: of what the link carries", of_passes, OF_LINK)
    if carried < without:
        return goal
    return report.not_measured(goal, f"the ranks, not the link, are the limit ({without:,.0f}/s)")


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    counts = ("--passes", str(4 * PASSES), "--rows-per-pass", str(ROWS // 4), "--test-rows", "1000")
    prepare = [sys.executable, "datasets/synthetic/prepare.py", "--out", str(folder / "data")]
    subprocess.run([*prepare, *counts], cwd=report.ROOT, check=True, capture_output=True)
    figures: dict[str, Any] = {"one machine": together(folder, options)}
    goals = []
    for mbit in options.mbit:
        name = f"{mbit} Mbit/s" if mbit else "no limit"
        figures[name] = found = on_nodes(folder, mbit, options)
        print(
            f"{name}: {found['samples_per_s']:,.0f} samples/s, "
            f"{found['bytes_between_nodes_a_sample']:,.0f} bytes per sample between nodes; "
            f"listening on every address: {', '.join(found['listens_on_every_address']) or 'none'}"
        )
        if mbit:
            without = figures.get("no limit", figures["one machine"])["samples_per_s"]
            goals.append(of_link(name, found, without))
        if options.ranks == 1:
            same = found["digests"] == figures["one machine"]["digests"]
            goals.append(report.at_least(f"{name}: the rows of one machine", float(same), 1.0))
        else:
            off = abs(found["auc"] - figures["one machine"]["auc"])
            goals.append(report.at_most(f"{name}: AUC off one machine's", off, AUC_OFF))
        wide = len(found["listens_on_every_address"])
        goals.append(report.at_most(f"{name}: who listens on every address", wide, 0))
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mbit", type=int, nargs="+", default=[0, 1000, 100], help="0: no limit")
    parser.add_argument("--ranks", type=int, default=1, help="ranks per node")
    parser.add_argument(
        "--paddles-launcher", action="store_true", help="without paddlebox.launch.bind_address"
    )
    report.output(parser, "two_nodes")
    options = parser.parse_args()
    if why := missing():
        raise report.UnavailableError(why)
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
