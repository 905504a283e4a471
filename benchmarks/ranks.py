"""What do ranks cost? Samples a second of R ranks in step, beside R copies that know of no other.

    python benchmarks/ranks.py

Weak scaling: every rank has its own file of each pass and the same batch size, whatever R is. 26
slots of one id, 13 dense features, D = 16, MLP 400-400-400. A job and its R copies have the same R
cores; each process has one thread. For each R the job and its copies take turns, now one first, now
the other; a figure is the median over turns of the samples a second inside passes, the first pass
left out. The copies are R separate runs at the same time: they share the machine's memory and
caches as ranks do, but nothing is exchanged.

A job of one rank is its own copy, by the same command: what its share differs from 1 by is what a
share of this run is worth. Where others use the machine, ranks in step wait for the one that has
lost its core, and copies do not: `cpu_share` is the processor time that copies take for a sample
by that of the job, which knows of no wait.

Strong scaling: the same files and the same batch over all ranks, whatever R is. The peer: Paddle's
DataParallel on as many processes, each with a replica of a sparse embedding of all keys
(ranks_peer.py); it reads nothing, its batches lie in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report

SLOTS, DENSE, DIM = 26, 13, 16
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
    """PASSES files a rank, of slot text."""
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
    """Of the passes after the first."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    samples = sum(int(line["samples"]) for line in lines[1:])
    return samples / sum(float(line["seconds"]) for line in lines[1:])


def cpu_s_per_sample(run_dirs: Sequence[Path]) -> float:
    """Of the passes after the first; of a job, the run dirs of all ranks."""
    lines = [
        json.loads(line)
        for run_dir in run_dirs
        for line in (run_dir / "metrics.jsonl").read_text().splitlines()[1:]
    ]
    ranks = 1 if "ranks" not in lines[0] else len(run_dirs)  # a job's lines have all ranks' samples
    samples = sum(int(line["samples"]) for line in lines) / ranks
    return sum(float(line["cpu_s"]) for line in lines) / samples


def exchanged(run_dir: Path, ranks: int, batch: int) -> dict[str, float]:
    """Of passes after the first: the share of time that the first rank's trainer spent in
    exchanges, waiting for others included and alone, in how many waits, and what a rank sent."""
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


def start(command: list[str], cores: list[int], log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "w") as file:
        return subprocess.Popen(
            command, cwd=report.ROOT, env=env, stdout=file, stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip


def wait(jobs: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
    for job, log in jobs:
        if job.wait(1800) != 0:
            raise RuntimeError(f"a job failed with {job.returncode}:\n{log.read_text()[-3000:]}")


def launcher(ranks: int, log: Path) -> list[str]:
    if ranks == 1:
        return []
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    return [*launch, "--log_dir", str(log)]


def together(
    folder: Path, ranks: int, batch: int, cores: list[int], share: int = 1
) -> tuple[float, float]:
    """Samples a second, and processor seconds a sample. share: files of each rank in a pass."""
    files = sorted(folder.glob("part-*.txt"))[: PASSES * ranks * share]
    run_dir = folder / "together"
    shutil.rmtree(run_dir, ignore_errors=True)
    train = [
        "tools/train.py", "-c", str(folder / "config.yaml"), "--run-dir", str(run_dir),
        *overrides(files, ranks * share, batch),
    ]  # fmt: skip
    command = [sys.executable, *launcher(ranks, folder / "log"), *train]
    job = start(command, cores[:ranks], folder / "together.log")
    wait([(job, folder / "together.log")])
    others = [run_dir / "ranks" / str(rank) for rank in range(1, ranks)]
    return samples_per_s(run_dir), cpu_s_per_sample([run_dir, *others])


def apart(folder: Path, ranks: int, batch: int, cores: list[int]) -> tuple[float, float]:
    """As `together`, of all copies."""
    files = sorted(folder.glob("part-*.txt"))
    jobs, runs = [], []
    for rank in range(ranks):
        run_dir = folder / f"apart-{rank}"
        shutil.rmtree(run_dir, ignore_errors=True)
        own = files[rank : PASSES * ranks : ranks]
        command = [
            sys.executable, "tools/train.py", "-c", str(folder / "config.yaml"),
            "--run-dir", str(run_dir), *overrides(own, 1, batch),
        ]  # fmt: skip
        log = folder / f"apart-{rank}.log"
        jobs.append((start(command, cores[:ranks], log), log))
        runs.append(run_dir)
    wait(jobs)
    return sum(samples_per_s(run_dir) for run_dir in runs), cpu_s_per_sample(runs)


def peer(folder: Path, ranks: int, options: argparse.Namespace, cores: list[int]) -> float:
    out = folder / f"peer-{ranks}.json"
    command = [
        sys.executable, *launcher(ranks, folder / "log-peer"), "benchmarks/ranks_peer.py",
        "--keys", str(options.keys), "--batch", str(options.batch), "--out", str(out),
    ]  # fmt: skip
    wait([(start(command, cores[:ranks], folder / "peer.log"), folder / "peer.log")])
    return float(json.loads(out.read_text())["samples_per_s"])


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    cores = sorted(os.sched_getaffinity(0))
    sizes = [ranks for ranks in options.ranks if ranks <= len(cores)]
    write_data(folder, max(sizes), options.rows, options.keys, options.seed)
    figures: dict[str, Any] = {}
    goals = []
    for ranks in sizes:
        turns = []
        for turn in range(options.turns):
            both = [together, apart][:: 1 if turn % 2 == 0 else -1]
            found = {of: of(folder, ranks, options.batch, cores) for of in both}
            turns.append((found[together], found[apart]))
        share = report.spread([mine[0] / copies[0] for mine, copies in turns])
        cpu_share = report.spread([copies[1] / mine[1] for mine, copies in turns])
        figures[str(ranks)] = {
            "samples_per_s": report.spread([mine[0] for mine, _ in turns]),
            "of_copies": report.spread([copies[0] for _, copies in turns]),
            "share": share,
            "cpu_share": cpu_share,
        }
        if ranks > 1:  # of the last turn, before another run takes its folder
            figures[str(ranks)]["exchange"] = exchanged(folder / "together", ranks, options.batch)
        figures[str(ranks)]["strong_samples_per_s"] = together(
            folder, ranks, options.batch // ranks, cores, share=max(sizes) // ranks
        )[0]
        if ranks > 1:
            figures[str(ranks)]["data_parallel_samples_per_s"] = peer(folder, ranks, options, cores)
        print(
            f"{ranks} ranks: {figures[str(ranks)]['samples_per_s']['median']:,.0f} samples/s, "
            f"copies {figures[str(ranks)]['of_copies']['median']:,.0f}, share "
            f"{share['median']:.3f}, by processor time {cpu_share['median']:.3f}"
        )
        if ranks > 1:
            goals.append(
                report.Goal(
                    f"{ranks} ranks, samples/s of as many copies",
                    share["median"],
                    SHARE_OF_COPIES,
                    share["median"] >= SHARE_OF_COPIES,
                )
            )
            times = (
                figures[str(ranks)]["samples_per_s"]["median"]
                / figures[str(ranks)]["data_parallel_samples_per_s"]
            )
            name = f"{ranks} ranks, times Paddle's DataParallel"
            goals.append(report.Goal(name, times, 1.0, times > 1.0))
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, default=100_000, help="of a rank in a pass")
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=2048, help="of a rank")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument("--out", type=Path, default=report.ROOT / "benchmarks/results/ranks.json")
    options = parser.parse_args()
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    sys.exit(main())
