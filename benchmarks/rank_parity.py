"""What does parity across ranks cost, and does a lost folder come back to the bit?

    python benchmarks/rank_parity.py

Jobs of 2 and 4 ranks train the data of ranks.py (26 slots of one id, D = 16, 100 bytes a row with
its key), with `ranks.parity` set to the number of ranks and with 0. The two take turns, in
alternating order, on the same cores. There are more ranks than cores on a small machine; both jobs
have the same. The figures are of the passes after the first, of all ranks:

  commit     seconds from the end of a pass until its commit is durable, while the next pass trains.
             With parity they contain the wait for the parity of the commit before.
  pass       seconds of a pass

When the job with parity ends, this measures its folders:

  stored     bytes that parity adds on disk, for each byte of the files of the newest version: the
             sets, and files that merges removed but that a set still depends on

Then the folder of one rank is deleted, the first rank's in every second turn, and the job starts
again. It trains nothing, and must end with the digests from before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ranks as of_ranks
import report
from peers.jobs import Jobs, launcher

from paddlebox.store.parity_set import FOLDER, protected_files
from paddlebox.tools.upkeep.store_files import newest, reading

COMMIT = 1.3  # bound of the goal
HIDDEN = [128, 64]


def train(folder: Path, ranks: int, batch: int, parity: int) -> list[Path]:
    """Train or resume a job. Returns the run dirs of its ranks."""
    run_dir = folder / f"run-{parity}"
    files = sorted(folder.glob("part-*.txt"))[: of_ranks.PASSES * ranks]
    command = [
        *launcher(ranks, folder / "log"), "tools/train.py", "-c", str(folder / "config.yaml"),
        "--run-dir", str(run_dir), *of_ranks.overrides(files, ranks, batch),
        f"ranks.parity={parity}", f"model.hidden={HIDDEN}",
    ]  # fmt: skip
    with Jobs() as jobs:
        jobs.start(command, sorted(os.sched_getaffinity(0)), folder / f"run-{parity}.log")
        jobs.ended()
    return [run_dir, *(run_dir / "ranks" / str(rank) for rank in range(1, ranks))]


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()][1:]


def figures_of(run_dirs: Sequence[Path]) -> dict[str, float]:
    lines = [line for run_dir in run_dirs for line in lines_of(run_dir)]
    found = {
        "commit_s": sum(line["stages"]["commit"]["work_s"] for line in lines) / len(lines),
        "pass_s": sum(line["seconds"] for line in lines) / len(lines),
    }
    parity = [line["rank_parity"]["seconds"] for line in lines if "rank_parity" in line]
    if parity:
        found["parity_s"] = sum(parity) / len(parity)
    return found


def stored(run_dirs: Sequence[Path]) -> float:
    """Bytes that parity adds to the stores, for each byte of their newest version."""
    needed = added = 0
    for store in (run_dir / "store" for run_dir in run_dirs):
        with reading(store) as manifest:
            needed += sum(protected_files(str(store), newest(manifest)).values())
        others = {path.stat().st_ino for path in store.rglob("*") if FOLDER not in path.parts}
        sizes = {}  # by inode: a file that a set links to and the store still has adds nothing
        for path in (store / FOLDER).rglob("*"):
            info = path.stat()
            if path.is_file() and info.st_ino not in others:
                sizes[info.st_ino] = info.st_size
        added += sum(sizes.values())
    return added / needed


def digests(run_dir: Path) -> tuple[str, str]:
    found = json.loads((run_dir / "summary.json").read_text())
    return found["sparse_digest"], found["dense_digest"]


def rebuild(
    folder: Path, run_dirs: Sequence[Path], batch: int, lost: int
) -> tuple[float, bool, int]:
    """Returns: seconds of the start, whether the digests are those from before, and the bytes."""
    before = digests(run_dirs[0])
    store = run_dirs[lost] / "store"
    size = sum(path.stat().st_size for path in (store / "ssd").iterdir())
    for path in run_dirs[lost].iterdir():
        if path.name != "ranks":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    began = time.monotonic()
    train(folder, len(run_dirs), batch, len(run_dirs))
    return time.monotonic() - began, digests(run_dirs[lost]) == before, size


def measured(folder: Path, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    turns, rebuilt = [], []
    for turn in range(options.turns):
        done = {}
        for parity in (0, ranks) if turn % 2 else (ranks, 0):
            shutil.rmtree(folder / f"run-{parity}", ignore_errors=True)
            run_dirs = train(folder, ranks, options.batch, parity)
            done[parity] = figures_of(run_dirs)
            if parity:
                done[parity]["stored"] = stored(run_dirs)
                lost = 0 if turn % 2 else ranks - 1
                rebuilt.append(rebuild(folder, run_dirs, options.batch, lost))
        turns.append({"without": done[0], "with": done[ranks]})
        print(f"{ranks} ranks, turn {turn}: {turns[-1]}, rebuilt {rebuilt[-1]}", flush=True)
    return {"turns": turns, "rebuilt": rebuilt}


def goals_of(ranks: int, found: dict[str, Any]) -> list[report.Goal]:
    turns = found["turns"]

    def ratios(name: str) -> list[float]:
        return [turn["with"][name] / turn["without"][name] for turn in turns]

    equal = min(float(same) for _, same, _ in found["rebuilt"])
    found["stored"] = report.spread([turn["with"]["stored"] for turn in turns])
    found["commit_times"] = report.spread(ratios("commit_s"))
    found["pass_times"] = report.spread(ratios("pass_s"))
    print(
        f"{ranks} ranks: commit {found['commit_times']}, pass {found['pass_times']}, "
        f"bytes for each byte of a version {found['stored']}"
    )
    return [
        report.at_most(f"{ranks} ranks, commit seconds: times", ratios("commit_s"), COMMIT),
        report.at_least(f"{ranks} ranks, rebuilt to the bit", equal, 1.0),
    ]


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    of_ranks.write_data(folder, max(options.ranks), options.rows, options.keys, options.seed)
    figures, goals = {}, []
    for ranks in options.ranks:
        figures[str(ranks)] = found = measured(folder, ranks, options)
        goals += goals_of(ranks, found)
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rows", type=int, default=20_000, help="samples of a rank per pass")
    parser.add_argument("--keys", type=int, default=2_600_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rank_parity.json"))
    options = parser.parse_args()
    if min(options.ranks) < 2 or options.turns < 1:
        parser.error("expected --ranks of 2 or more, --turns of 1 or more")
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
