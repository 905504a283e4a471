"""Do ranks get equal shares of one file, and does a shuffle over ranks keep the AUC?

    python benchmarks/shares.py [--gb 1] [--seeds 5]

Shares: one file of generated rows (datasets/synthetic) with log keys, sorted by user, is loaded by
four ranks with each value of `data.share`, and packed with gzip by `bytes`. A page view has one to
seven rows of a user. For each, the script notes the samples of each rank, the seconds of the
slowest, and the page views of all ranks: their number, and a sum of their digests. A digest is that
of the log keys of a view in their order, so equal sums mean equal views.

AUC: files that are sorted by user are trained by one rank and by four, both shuffled, the latter
with `data.share: instance`. A step has 512 instances in both. The AUC is that of the test rows.

Goals: the largest share is at most 1.02 times the smallest with `instance` and `bytes`. With
`slot user` and `search_id` it is at most 1.05 times, or the difference is at most the largest
group. Page views are those of one rank. The mean AUC is within 0.0005 of one rank's.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import report

MEASURES = (*report.RANKS, "configs/dnn_synthetic.yaml")
RANKS, STEP = 4, 512
CONFIG = "configs/dnn_synthetic.yaml"
SLOTS = "datasets/synthetic/slots.yaml"
EVEN, GROUPED, AUC_BOUND = 1.02, 1.05, 0.0005
BYTES_A_ROW = 330  # about
_USER = 8  # the token of a row of datasets/synthetic that is its first user
_MOST_A_VIEW = 7
_PASSES, _ROWS, _TEST_ROWS = 3, 60_000, 50_000


# ---- data


def generate(folder: Path, passes: int, rows: int, seed: int = 1) -> None:
    counts = ("--passes", str(passes), "--rows-per-pass", str(rows))
    call(
        *("datasets/synthetic/prepare.py", "--out", str(folder), "--seed", str(seed)),
        *(*counts, "--test-rows", str(_TEST_ROWS)),
    )


def call(*words: str, launched_as: int = 1) -> str:
    """Runs Python, under Paddle's launcher if there are several ranks. Returns its output."""
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(launched_as)]
    launch += ["--log_dir", str(report.ROOT / "build/bench/log")]
    done = subprocess.run(
        [sys.executable, *(launch if launched_as > 1 else []), *words],
        cwd=report.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(report.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def by_user(path: Path) -> list[str]:
    """The rows of a file, sorted by user."""
    return sorted(path.read_text().splitlines(keepends=True), key=user_of)


def user_of(row: str) -> str:
    return row.split(" ", _USER + 1)[_USER]


def with_log_keys(rows: list[str]) -> Iterator[str]:
    """The rows with log keys: page views of one to seven successive rows of a user."""
    rng = random.Random(1)
    view, left, user = 0, 0, ""
    for number, row in enumerate(rows):
        if left == 0 or user_of(row) != user:
            view, left, user = view + 1, rng.randint(1, _MOST_A_VIEW), user_of(row)
        left -= 1
        yield f"1 {number:011d}0de01{view:016x} {row}"


# ---- shares


def load_share(settings: dict[str, Any]) -> None:
    """One rank: loads its share of a file, and writes down what it got."""
    import numpy as np

    from paddlebox.config import Format, load_slots
    from paddlebox.config.data import ShareBy
    from paddlebox.data.instance_options import InstanceOptions
    from paddlebox.data.loader import load
    from paddlebox.data.options import LoadOptions
    from paddlebox.data.share import Share
    from paddlebox.ranks import World

    world = World.join()
    by, _, slot = settings["share"].partition(" ")
    options = LoadOptions(
        Format.MULTISLOT,
        load_slots(report.ROOT / SLOTS),
        STEP // RANKS,
        instances=InstanceOptions(parse_logkey=True),
        share=Share(ShareBy(by), slot),
    )
    world.wait("begin")
    begin = time.perf_counter()
    instances = load([settings["file"]], options, 1 << 30, world=world, seed=1).instances
    seconds = time.perf_counter() - begin
    instances.arrange_by("page_views", 0)
    feasigns, offsets = instances.pack_feasigns(0, instances.size)
    slots = len(options.slots.sparse)
    users = np.unique(feasigns[offsets[:-1][::slots]], return_counts=True)[1]
    starts = list(instances.page_view_starts())
    found = {
        "samples": instances.size,
        "seconds": seconds,
        "page_views": len(starts) - 1,
        "digest": digest_of_views(instances.ins_ids(0, instances.size), starts),
        "largest_user": int(users.max(initial=0)),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    Path(f"{settings['out']}-{world.rank}.json").write_text(json.dumps(found))
    world.close()


def digest_of_views(ids: Sequence[str], starts: Sequence[int]) -> int:
    """The sum of the digests of page views, which does not depend on the order of the views."""
    total = 0
    for begin, end in pairwise(starts):
        view = "".join(ids[begin:end]).encode()
        total += int.from_bytes(hashlib.blake2b(view, digest_size=8).digest(), "little")
    return total % (1 << 64)


def shares_of(folder: Path, file: Path, share: str, ranks: int = RANKS) -> dict[str, Any]:
    out = folder / "share"
    settings = json.dumps({"file": str(file), "share": share, "out": str(out)})
    call("benchmarks/shares.py", "--load", settings, launched_as=ranks)
    found = [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(ranks)]
    return {
        "samples": [one["samples"] for one in found],
        "seconds": max(one["seconds"] for one in found),
        "page_views": sum(one["page_views"] for one in found),
        "digest": f"{sum(one['digest'] for one in found) % (1 << 64):016x}",
        "largest_user": max(one["largest_user"] for one in found),
        "peak_bytes": max(one["peak_bytes"] for one in found),
    }


def shares(folder: Path, gb: float) -> tuple[dict[str, Any], list[report.Goal]]:
    generate(folder / "one", 1, int(gb * 1e9 / BYTES_A_ROW))
    file = folder / "one.txt"
    with open(file, "w") as text:
        text.writelines(with_log_keys(by_user(folder / "one" / "train-000.txt")))
    shutil.rmtree(folder / "one")
    packed = folder / "one.txt.gz"
    with open(file, "rb") as plain, gzip.open(packed, "wb", 1) as to:
        shutil.copyfileobj(plain, to, 1 << 20)
    figures: dict[str, Any] = {"bytes": file.stat().st_size}
    figures["one rank"] = one = shares_of(folder, file, "files", 1)
    goals = []
    for share in ("bytes", "instance", "slot user", "search_id", "gzip"):
        path, by = (packed, "bytes") if share == "gzip" else (file, share)
        figures[share] = found = shares_of(folder, path, by)
        print(f"{share}: {json.dumps(found)}", flush=True)
        if sum(found["samples"]) != sum(one["samples"]):
            raise RuntimeError(
                f"{share}: {found['samples']} samples, one rank has {one['samples']}"
            )
        goals.append(share_goal(share, found, one["largest_user"]))
    same = figures["search_id"]["digest"] == one["digest"]
    return figures, [*goals, report.at_least("search_id: the page views of one rank", same, 1)]


def share_goal(share: str, found: dict[str, Any], largest_user: int) -> report.Goal:
    most, least = max(found["samples"]), min(found["samples"])
    largest = {"slot user": largest_user, "search_id": _MOST_A_VIEW}.get(share)
    bound = EVEN if largest is None else max(GROUPED, (least + largest) / least)
    return report.at_most(f"{share}: samples, largest to smallest share", most / least, bound)


# ---- AUC


def auc_of(folder: Path, ranks: int, seed: int) -> float:
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    call(
        *("tools/train.py", "-c", CONFIG, "--run-dir", str(run_dir), "-o", f"seed={seed}"),
        *(f"data.train_files=[{folder}/sorted/train-*.txt]", "data.shuffle=true"),
        *(f"data.test_files=[{folder}/sorted/test.txt]", "trainer.evaluate_after_pass=true"),
        *("data.share=instance", f"data.batch_size={STEP // ranks}", "model.hidden=[64]"),
        *("optimizer.learning_rate=0.001", "trainer.dense_threads=1", "store.threads=1"),
        launched_as=ranks,
    )
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return float(line["test"]["auc"])


def aucs(folder: Path, seeds: int) -> tuple[dict[str, Any], list[report.Goal]]:
    generate(folder / "sorted", _PASSES, _ROWS)
    for path in (folder / "sorted").glob("train-*.txt"):
        path.write_text("".join(by_user(path)))
    found: dict[int, list[float]] = {1: [], RANKS: []}
    for seed in range(1, seeds + 1):
        for ranks, of_ranks in found.items():
            of_ranks.append(auc_of(folder, ranks, seed))
            print(f"seed {seed}, {ranks} ranks: AUC {of_ranks[-1]:.6f}", flush=True)
    gap = abs(statistics.fmean(found[RANKS]) - statistics.fmean(found[1]))
    return {"auc": found}, [report.at_most("mean AUC beside one rank", gap, AUC_BOUND)]


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    figures, goals = shares(folder, options.gb)
    if options.seeds:
        of_aucs, more = aucs(folder, options.seeds)
        figures, goals = figures | of_aucs, [*goals, *more]
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the file")
    parser.add_argument("--seeds", type=int, default=5, help="0: no AUC")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument("--out", type=Path, default=report.ROOT / "benchmarks/results/shares.json")
    options = parser.parse_args()
    if options.load:
        load_share(json.loads(options.load))
        return 0
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch", "load"))


if __name__ == "__main__":
    report.run(main)
