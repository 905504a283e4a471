"""What do several ranks cost, compared with as many separate runs and with other libraries?

    python benchmarks/ranks.py

Weak scaling: every rank has its own file of each pass and the same batch size, whatever R is. 26
slots of one id, 13 dense features, D = 16, MLP 400-400-400. The copies of a job are R separate runs
at the same time: they share the machine's memory and caches as ranks do, but exchange nothing. A
job and its copies have the same R cores, with one thread per process. For each R, the job and its
copies take turns, in alternating order. A figure is the median over the turns of the samples/s
within passes, without the first pass.

A job of one rank is its own copy, by the same command. How far its share is from 1 shows how
accurate the shares of this run are. On a machine that others use too, ranks wait for the rank that
has lost its core, and copies do not. `cpu_share` is therefore the processor time per sample of the
copies, divided by that of the job; it does not depend on waiting.

Strong scaling: the same files, and the same batch over all ranks, whatever R is.

Peers take part in the same turns, with as many processes and the same cores (peers/of_ranks.py):
Paddle's DataParallel, with a replica of a sparse embedding of all keys on each rank; the parameter
server of Paddle 3.0.0, asynchronous; and torchrec, with sharded tables. Their batches are in memory
beforehand and on huge pages; torchrec's MLP runs as end_to_end.py runs PyTorch's at its best. All
figures are of whole steps, never of kernels. Our figure includes reading text, the begin and end of
passes, and commits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers.jobs import Jobs, launcher
from peers.of_ranks import DENSE, DIM, PEERS, SLOTS, Setting, check

MEASURES = report.RANKS
SHARE_OF_COPIES = 0.9
PASSES = 4

CONFIG = f"""
name: ranks
table: {{embedx_dim: {DIM}, embedx_threshold: 0}}
data: {{format: multislot, slots: SLOTS_FILE, train_files: [unused], files_per_pass: 1}}
model: {{type: dnn, hidden: [400, 400, 400]}}
trainer: {{dense_threads: 1}}
store: {{threads: 1}}
"""


def write_data(folder: Path, ranks: int, rows: int, keys: int, seed: int) -> None:
    """Writes PASSES files of slot text for each rank."""
    slots = ["slots:", "  - {name: click, type: label}"]
    slots += [f"  - {{name: s{i}, type: sparse}}" for i in range(SLOTS)]
    slots += [f"  - {{name: values, type: dense, dim: {DENSE}}}"]
    (folder / "slots.yaml").write_text("\n".join(slots) + "\n")
    (folder / "config.yaml").write_text(CONFIG.replace("SLOTS_FILE", str(folder / "slots.yaml")))
    rng = np.random.default_rng(seed)
    for number in range(PASSES * ranks):
        ids = (rng.zipf(1.05, (rows, SLOTS)) % (keys // SLOTS)) * SLOTS + np.arange(SLOTS) + 1
        values = rng.normal(size=(rows, DENSE)).round(3)
        labels = (rng.random(rows) < 0.25).astype(int)
        lines = []
        for i in range(rows):
            sparse = " ".join(f"1 {feasign}" for feasign in ids[i])
            dense = " ".join(map(str, values[i]))
            lines.append(f"1 {labels[i]} {sparse} {DENSE} {dense}\n")
        (folder / f"part-{number:03d}.txt").write_text("".join(lines))


def overrides(files: list[Path], files_per_pass: int, batch: int) -> list[str]:
    names = ",".join(map(str, files))
    return [
        "-o", f"data.train_files=[{names}]",
        f"data.files_per_pass={files_per_pass}", f"data.batch_size={batch}",
    ]  # fmt: skip


def samples_per_s(run_dir: Path) -> float:
    """Samples/s of the passes after the first."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    samples = sum(int(line["samples"]) for line in lines[1:])
    return samples / sum(float(line["seconds"]) for line in lines[1:])


def cpu_s_per_sample(run_dirs: Sequence[Path]) -> float:
    """Processor seconds per sample of the passes after the first. For a job, pass the run dirs of
    all its ranks."""
    lines = [
        json.loads(line)
        for run_dir in run_dirs
        for line in (run_dir / "metrics.jsonl").read_text().splitlines()[1:]
    ]
    # Each line of a job counts the samples of all ranks.
    ranks = 1 if "ranks" not in lines[0] else len(run_dirs)
    samples = sum(int(line["samples"]) for line in lines) / ranks
    return sum(float(line["cpu_s"]) for line in lines) / samples


def exchanged(run_dir: Path, ranks: int, batch: int) -> dict[str, float]:
    """Figures of the passes after the first: the share of the time that the first rank's trainer
    spent in exchanges, that of waiting for others within it, the number of waits per step, and the
    bytes that a rank sent."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(float(line["seconds"]) for line in lines[1:])
    steps = ranks * sum(int(line["batches"]) for line in lines[1:])

    def total(what: str, names: Sequence[str]) -> float:
        return sum(float(line["ranks"][what].get(name, 0)) for line in lines[1:] for name in names)

    in_steps = ("step", "dense")
    own_steps = steps / ranks
    sent = {
        what: total("sent_bytes", [what]) / steps for what in ("ids", "rows", "gradients", "dense")
    }
    return {
        "time_share": total("seconds", in_steps) / seconds,
        "waiting_share": total("waiting_seconds", in_steps) / seconds,
        "waits_a_step": total("waits", in_steps) / own_steps,
        "bytes_a_sample": sum(sent.values()) / batch,
        **{f"bytes_a_step_{what}": count for what, count in sent.items()},
    }


def together(
    folder: Path, ranks: int, batch: int, cores: list[int], share: int = 1
) -> tuple[float, float]:
    """Samples/s and processor seconds per sample of a job. share: files of a rank per pass."""
    files = sorted(folder.glob("part-*.txt"))[: PASSES * ranks * share]
    run_dir = folder / "together"
    shutil.rmtree(run_dir, ignore_errors=True)
    train = [
        "tools/train.py", "-c", str(folder / "config.yaml"), "--run-dir", str(run_dir),
        *overrides(files, ranks * share, batch),
    ]  # fmt: skip
    with Jobs() as jobs:
        command = [*launcher(ranks, folder / "log"), *train]
        jobs.start(command, cores[:ranks], folder / "together.log")
        jobs.ended()
    others = [run_dir / "ranks" / str(rank) for rank in range(1, ranks)]
    return samples_per_s(run_dir), cpu_s_per_sample([run_dir, *others])


def apart(folder: Path, ranks: int, batch: int, cores: list[int]) -> tuple[float, float]:
    """Like `together`, for all copies."""
    files = sorted(folder.glob("part-*.txt"))
    runs = [folder / f"apart-{rank}" for rank in range(ranks)]
    with Jobs() as jobs:
        for rank, run_dir in enumerate(runs):
            shutil.rmtree(run_dir, ignore_errors=True)
            own = files[rank : PASSES * ranks : ranks]
            command = [
                sys.executable, "tools/train.py", "-c", str(folder / "config.yaml"),
                "--run-dir", str(run_dir), *overrides(own, 1, batch),
            ]  # fmt: skip
            jobs.start(command, cores[:ranks], folder / f"apart-{rank}.log")
        jobs.ended()
    return sum(samples_per_s(run_dir) for run_dir in runs), cpu_s_per_sample(runs)


def measured(options: argparse.Namespace, folder: Path, ranks: int) -> dict[str, Any]:
    """Measures R ranks, their copies and the peers in turns, and strong scaling once."""
    cores = sorted(os.sched_getaffinity(0))
    setting = Setting(
        folder, ranks, options.keys, options.batch, max(options.rows // options.batch, 1),
        cores[:ranks], options.ps_python,
    )  # fmt: skip
    peers = {} if options.without_peers else PEERS
    turns = []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    ways: dict[str, str] = {}
    for turn in range(options.turns):
        both = [together, apart][:: 1 if turn % 2 == 0 else -1]
        done = {of: of(folder, ranks, options.batch, cores) for of in both}
        turns.append((done[together], done[apart]))
        for name, peer in peers.items():
            answer = peer(setting)
            theirs[name].append(answer["samples_per_s"])
            ways[name] = answer.get("way", "as shipped")
    mine = [job[0] for job, _ in turns]
    found: dict[str, Any] = {
        "samples_per_s": report.spread(mine),
        "of_copies": report.spread([copies[0] for _, copies in turns]),
        "shares": [job[0] / copies[0] for job, copies in turns],
        "cpu_share": report.spread([copies[1] / job[1] for job, copies in turns]),
        "peers": {
            name: {
                "samples_per_s": report.spread(rates),
                "times": report.ratios(mine, rates),
                "way": ways[name],  # of the last turn
            }
            for name, rates in theirs.items()
        },
    }
    if ranks > 1:  # of the last turn; the next run uses its folder again
        found["exchange"] = exchanged(folder / "together", ranks, options.batch)
    share = max(usable(options.ranks)) // ranks
    strong = together(folder, ranks, options.batch // ranks, cores, share)
    found["strong_samples_per_s"] = strong[0]
    return found


def goals_of(
    ranks: int, shares: Sequence[float], times: Mapping[str, Sequence[float]]
) -> list[report.Goal]:
    """The goals of a number of ranks.

    Args:
        shares: the rate of the ranks, of as many copies, in each turn.
        times: name of a peer -> our rate, of the peer's, in each turn.
    """
    goals = []
    if ranks > 1:
        name = f"{ranks} ranks, samples/s of as many copies"
        goals.append(report.at_least(name, shares, SHARE_OF_COPIES))
    for peer, of in times.items():
        goals.append(report.at_least(f"{ranks} ranks, ahead of {peer}: times", of, 1.0))
    return goals


def usable(sizes: list[int]) -> list[int]:
    return [ranks for ranks in sizes if ranks <= len(os.sched_getaffinity(0))]


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    sizes = usable(options.ranks)
    if sizes:
        write_data(folder, max(sizes), options.rows, options.keys, options.seed)
    figures: dict[str, Any] = {}
    goals = []
    for ranks in sizes:
        figures[str(ranks)] = found = measured(options, folder, ranks)
        times = {name: of["times"] for name, of in found["peers"].items()}
        goals += goals_of(ranks, found["shares"], times)
        print(
            f"{ranks} ranks: {found['samples_per_s']['median']:,.0f} samples/s, copies "
            f"{found['of_copies']['median']:,.0f}, share {statistics.median(found['shares']):.3f}, "
            f"share by processor time {found['cpu_share']['median']:.3f}"
        )
        for name, rates in found["peers"].items():
            of = report.spread(rates["times"])
            print(
                f"  {name}: {rates['samples_per_s']['median']:,.0f} samples/s, ours "
                f"{of['median']:.2f} times as many ({of['min']:.2f} to {of['max']:.2f})"
            )
    peers = () if options.without_peers else PEERS
    why = f"the machine has {len(os.sched_getaffinity(0))} cores"
    for ranks in sorted(set(options.ranks) - set(sizes)):
        of_ranks = goals_of(ranks, [], {peer: [] for peer in peers})
        goals += [report.not_measured(goal, why) for goal in of_ranks]
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, default=100_000, help="rows per rank and pass")
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=2048, help="batch size of a rank")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument("--out", type=Path, default=report.ROOT / "benchmarks/results/ranks.json")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument(
        "--ps-python", type=Path, default=report.ROOT / ".venv-bench-ps/bin/python",
        help="Python of the environment with Paddle 3.0.0, from make bench-setup-ps",
    )  # fmt: skip
    options = parser.parse_args()
    if not options.without_peers:
        check(options.ps_python)
    hidden = ("scratch", "ps_python")
    return report.timed(options, lambda folder: run(options, folder), hidden=hidden)


if __name__ == "__main__":
    report.run(main)
