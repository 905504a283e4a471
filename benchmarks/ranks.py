"""What do several ranks cost and send, and do they train the same model as one?

    python benchmarks/ranks.py rates
    PADDLEBOX_DATA=../shared/data python benchmarks/ranks.py auc
    PADDLEBOX_DATA=../shared/data python benchmarks/ranks.py modes [--modes int8_2x1 average_16]
    python benchmarks/ranks.py parity
    PADDLEBOX_DATA=../shared/data python benchmarks/ranks.py bytes

rates   samples/s of ranks, compared with as many separate runs and with other libraries
auc     rows and AUC of several ranks, compared with those of one
modes   what the modes of `ranks:` save, and what they cost in AUC
parity  what `ranks.parity` costs, and whether a lost folder comes back to the bit
bytes   what schemes of exchange would send between two nodes, on paper (peers/schemes.py)

`auc` and `modes` train the DeepFM of configs/deepfm_criteo.yaml with D = 16 and an MLP of 128-64 on
the first 80 % of the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, line i on rank i mod R, and
evaluate on the last 20 %. A step has 512 instances over all ranks, so that every number of ranks
sees the same global batches.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers import schemes
from peers.criteo import criteo_split
from peers.jobs import Jobs, launcher
from peers.of_ranks import DENSE, DIM, FROM_TEXT, PEERS, SLOTS, Setting, check

from paddlebox.store.parity_set import FOLDER, protected_files
from paddlebox.tools.upkeep.report import newest, reading

# ---- rates

SHARE_OF_COPIES = 0.9
PASSES = 4

# The model of the peers: for each slot DIM weights, which are embed_w and those of embedx, and the
# dense features as they are, without the ranges that runs choose by default.
CONFIG = f"""
name: ranks
table: {{embedx_dim: {DIM - 1}, embedx_threshold: 0}}
data: {{format: multislot, slots: SLOTS_FILE, train_files: [unused], files_per_pass: 1}}
model: {{type: dnn, hidden: [400, 400, 400], dense_ranges: none}}
optimizer: {{averaging: 0}}
trainer: {{dense_threads: 1}}
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
    run_dir = job(folder, ranks, batch, cores, share)
    others = [run_dir / "ranks" / str(rank) for rank in range(1, ranks)]
    return samples_per_s(run_dir), cpu_s_per_sample([run_dir, *others])


def from_memory(folder: Path, ranks: int, batch: int, cores: list[int]) -> float:
    """Samples/s of the steps of a job's last pass, whose batches are in memory. No other pass is
    read, staged or committed meanwhile."""
    program = "benchmarks/peers/prepared_rank.py"
    run_dir = job(folder, ranks, batch, cores, 1, f"checkpoint.every={PASSES}", program=program)
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    begin, end = last["spans"]["train"]
    return float(last["samples"]) / float(end - begin)


def job(
    folder: Path,
    ranks: int,
    batch: int,
    cores: list[int],
    share: int,
    *more: str,
    program: str = "tools/train.py",
) -> Path:
    """Runs a job, with further overrides. Returns its run dir."""
    files = sorted(folder.glob("part-*.txt"))[: PASSES * ranks * share]
    run_dir = folder / "together"
    shutil.rmtree(run_dir, ignore_errors=True)
    train = [
        program, "-c", str(folder / "config.yaml"), "--run-dir", str(run_dir),
        *overrides(files, ranks * share, batch), *more,
    ]  # fmt: skip
    with Jobs() as jobs:
        command = [*launcher(ranks, folder / "log"), *train]
        jobs.start(command, cores[:ranks], folder / "together.log")
        jobs.ended()
    return run_dir


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
    turns, memory = [], []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    ways: dict[str, str] = {}
    for turn in range(options.turns):
        both = [together, apart][:: 1 if turn % 2 == 0 else -1]
        done = {of: of(folder, ranks, options.batch, cores) for of in both}
        turns.append((done[together], done[apart]))
        memory.append(from_memory(folder, ranks, options.batch, cores))
        for name, peer in peers.items():
            answer = peer(setting)
            theirs[name].append(answer["samples_per_s"])
            ways[name] = answer.get("way", "as shipped")
    mine = [job[0] for job, _ in turns]
    found: dict[str, Any] = {
        "samples_per_s": report.spread(mine),
        "from_memory": report.spread(memory),
        "of_copies": report.spread([copies[0] for _, copies in turns]),
        "shares": [job[0] / copies[0] for job, copies in turns],
        "cpu_share": report.spread([copies[1] / job[1] for job, copies in turns]),
        "peers": {
            name: {
                "samples_per_s": report.spread(rates),
                "times": report.ratios(mine if name == FROM_TEXT else memory, rates),
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


def rates(options: argparse.Namespace, folder: Path) -> report.Found:
    """Measure ranks, their copies and the peers.

    Weak scaling: every rank has its own file of each pass and the same batch size, whatever R is.
    26 slots of one id with 16 weights, 13 dense features, MLP 400-400-400, as in the peers' models.
    The copies of a job are R
    separate runs at the same time: they share the machine's memory and caches as ranks do, but
    exchange nothing. A job and its copies have the same R cores, with one thread per process. For
    each R, the job and its copies take turns, in alternating order. A figure is the median over the
    turns of the samples/s within passes, without the first pass.

    A job of one rank is its own copy, by the same command. How far its share is from 1 shows how
    accurate the shares of this run are. On a machine that others use too, ranks wait for the rank
    that has lost its core, and copies do not. `cpu_share` is therefore the processor time per
    sample of the copies, divided by that of the job; it does not depend on waiting.

    Strong scaling: the same files, and the same batch over all ranks, whatever R is.

    Peers take part in the same turns, with as many processes and the same cores
    (peers/of_ranks.py): Paddle's DataParallel, with a replica of a sparse embedding of all keys on
    each rank; the parameter server of Paddle 3.0.0, asynchronous; and torchrec, with sharded
    tables. Their memory is on huge pages; torchrec's MLP runs as end_to_end.py runs PyTorch's at
    its best. All figures are of whole steps, never of kernels. The peers' batches are in memory
    beforehand, and they are compared with a pass of ours whose batches are, too
    (peers/prepared_rank.py). torchrec is also measured as it reads the same text with pyarrow, on
    the same core. It is compared with a whole run of ours, whose figure includes reading text, the
    begin and end of passes, and commits.
    """
    if not options.without_peers:
        check(options.ps_python)
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
            f"{ranks} ranks: {found['samples_per_s']['median']:,.0f} samples/s, from memory "
            f"{found['from_memory']['median']:,.0f}, copies "
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


# ---- Criteo, which `auc` and `modes` train

CRITEO = "configs/deepfm_criteo.yaml"
STEP = 512
AUC_BOUND = 0.001


def write_shares(folder: Path, lines: list[str], name: str, ranks: int) -> str:
    """Writes one file per rank. Returns the pattern of their names."""
    for rank in range(ranks):
        (folder / f"{name}-{ranks}-{rank}.txt").write_text("".join(lines[rank::ranks]))
    return f"{folder}/{name}-{ranks}-*.txt"


def launched(
    folder: Path,
    ranks: int,
    seed: int,
    split: tuple[list[str], list[str]],
    overrides: list[str],
    *,
    far: bool = False,
) -> Path:
    """Trains `split` with the given number of ranks. far: as if each was on a host of its own.
    Returns the run dir."""
    files = [
        f"data.{key}=[{write_shares(folder, lines, name, ranks)}]"
        for key, name, lines in zip(
            ("train_files", "test_files"), ("train", "test"), split, strict=True
        )
    ]
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    launch += ["--log_dir", str(folder / "log")]
    done = subprocess.run(
        [
            *(sys.executable, *(launch if ranks > 1 else [])),
            "benchmarks/peers/far_rank.py" if far else "tools/train.py",
            *("-c", CRITEO, "--run-dir", str(run_dir)),
            *("-o", f"seed={seed}", *files, f"data.batch_size={STEP // ranks}"),
            *("table.embedx_dim=16", "model.hidden=[128,64]", "trainer.dense_threads=1"),
            # Without optimizer.averaging, which ranks.sync_weight_step excludes.
            *("data.threads=1", "trainer.evaluate_passes=after", "optimizer.averaging=0"),
            *overrides,
        ],
        cwd=report.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(report.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{ranks} ranks, seed {seed}, {overrides} failed:\n{done.stdout[-2000:]}"
            f"{done.stderr[-3000:]}"
        )
    return run_dir


# ---- auc

STEPS = 20
ROWS_BOUND = 1e-5

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # (n) feasigns, (n, 2) counts, (n, 1 + D) weights


def rows_of(run_dir: Path) -> Rows:
    """The rows of all ranks, ordered by feasign."""
    from paddlebox.store.group import ALL_KEYS
    from paddlebox.store.rank_stores import rank_versions
    from paddlebox.store.stored_rows import StoredRows
    from paddlebox.store.table import fields_of_rows

    with StoredRows(rank_versions(run_dir / "store")) as stored:
        feasigns, words = stored.read(*ALL_KEYS)
        fields = fields_of_rows(stored.layout, words)
    order = np.argsort(feasigns)
    counts = np.stack([fields["show"], fields["click"]], axis=1)
    weights = np.concatenate([fields["embed_w"][:, None], fields["embedx_w"]], axis=1)
    return feasigns[order], counts[order], weights[order]


def distance(one: Rows, several: Rows) -> dict[str, float]:
    """The distance of the rows. Raises RuntimeError if feasigns or counts differ."""
    for what, expected, found in zip(("feasigns", "shows and clicks"), one, several, strict=False):
        if not np.array_equal(expected, found):
            raise RuntimeError(f"one rank and several ranks have different {what}")
    off = np.abs(one[2] - several[2]).max(axis=1) / np.abs(one[2]).max(axis=1)
    return {
        "rows": len(off),
        "worst": float(off.max()),
        "mean": float(off.mean()),
        "beyond": int(np.count_nonzero(off > ROWS_BOUND)),
        "norm": float(np.linalg.norm(one[2] - several[2]) / np.linalg.norm(one[2])),
    }


def auc(options: argparse.Namespace, folder: Path) -> report.Found:
    """Compare the rows and the AUC of several ranks with those of one.

    For each seed, the rows of one rank and of R ranks are compared after 20 steps in which every
    row has an embedx from its first push on (`embedx_threshold` 0). The distance of a row is the
    largest difference of its weights (embed_w, embedx), relative to its largest weight. The AUC is
    that after one pass with the unchanged config. Goals: the distance of rows is at most 1e-5, with
    shows and clicks equal to the bit. The mean AUC is within 0.001 of that of one rank.
    """
    split = criteo_split()
    short = (split[0][: STEPS * STEP], split[1][:STEP])
    sizes = [1, *(ranks for ranks in options.ranks if ranks > 1)]
    rows: dict[int, list[dict[str, float]]] = {ranks: [] for ranks in sizes[1:]}
    aucs: dict[int, list[float]] = {ranks: [] for ranks in sizes}
    for seed in range(1, options.seeds + 1):
        of_one: Rows | None = None
        for ranks in sizes:
            found = rows_of(launched(folder, ranks, seed, short, ["table.embedx_threshold=0"]))
            if of_one is None:
                of_one = found
            else:
                rows[ranks].append(distance(of_one, found))
            run_dir = launched(folder, ranks, seed, split, [])
            line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
            aucs[ranks].append(line["test"]["auc"])
            last = json.dumps(rows[ranks][-1]) if ranks > 1 else ""
            print(f"seed {seed}, {ranks} ranks: AUC {aucs[ranks][-1]:.6f} {last}", flush=True)
    goals = []
    for ranks in sizes[1:]:
        worst = max(found["worst"] for found in rows[ranks])
        gap = abs(statistics.fmean(aucs[ranks]) - statistics.fmean(aucs[1]))
        name = f"{ranks} ranks beside one"
        goals.append(report.at_most(f"{name}: rows", worst, ROWS_BOUND))
        goals.append(report.at_most(f"{name}: mean AUC", gap, AUC_BOUND))
    return {"rows": rows, "auc": aucs}, goals


# ---- modes

_FORMATS = {
    name: [f"ranks.rows={name}", f"ranks.gradients={name}"]
    for name in ("float32", "float16", "bfloat16", "int8")
}
_64 = ["table.embedx_dim=64"]
_AT_ONCE = ["table.embedx_threshold=0"]  # rows have an embedx from their second step on
# Columns of an embedx, and whether rows have one from the start: suffix of a mode, overrides.
_WIDTHS = {"": [], "_64": _64, "_at_once": _AT_ONCE, "_64_at_once": [*_64, *_AT_ONCE]}


def _between_two(name: str, of_width: str) -> tuple[int, str, list[str]]:
    """The mode that sends a format between two nodes of one rank each."""
    peer = f"float32_2x1{of_width}"
    return 2, peer, [*_FORMATS[name], *_WIDTHS[of_width]]


# Name: number of ranks, the mode to compare with, overrides.
MODES: dict[str, tuple[int, str, list[str]]] = {
    "float32": (2, "float32", []),
    **{
        f"{name}_2x1{of_width}": _between_two(name, of_width)
        for of_width in _WIDTHS
        for name in _FORMATS
        if name != "bfloat16" or not of_width  # as many bytes as float16
    },
    "average_16": (2, "float32", ["ranks.sync_weight_step=16"]),
    "async_1_2x1": (2, "float32_2x1", ["ranks.staleness=1"]),
    "async_4_2x1": (2, "float32_2x1", ["ranks.staleness=4"]),
}
_OF_STEPS = ("ids", "rows", "gradients")
_BOUNDS = {"int8": 0.45, "float16": 0.60, "bfloat16": 0.60}  # by format


def train_mode(
    folder: Path, mode: str, seed: int, split: tuple[list[str], list[str]]
) -> dict[str, Any]:
    """Trains one pass. Returns AUC on the evaluation lines, bytes sent, and seconds."""
    ranks, _, overrides = MODES[mode]
    run_dir = launched(folder, ranks, seed, split, overrides, far="_2x1" in mode)
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    dim = 64 if "table.embedx_dim=64" in overrides else 16
    sent, between = line["ranks"]["sent_bytes"], line["ranks"]["between_nodes_bytes"]
    # Rows have one bit more than gradients, so this is the number of rows. The error is up to 1 %,
    # because messages end with a whole byte.
    touched = 8 * (between.get("rows", 0) - between.get("gradients", 0))
    return {
        "auc": line["test"]["auc"],
        "seconds": line["seconds"],
        "of_steps": sum(sent[name] for name in _OF_STEPS) / line["samples"],
        "left": sent.get("left", 0) / line["samples"],
        "dense": sent["dense"] / line["samples"],
        "between_nodes": sum(between.get(n, 0) for n in (*_OF_STEPS, "left")) / line["samples"],
        "left_between_nodes": between.get("left", 0) / line["samples"],
        "whole_between_nodes": touched * (8 * (3 + dim) + 4) / line["samples"],
    }


def summary(runs: list[dict[str, Any]], peers: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of a mode, relative to the mode that it is compared with."""

    def mean(of: list[dict[str, Any]], name: str) -> float:
        return statistics.fmean(run[name] for run in of)

    found = {name: mean(runs, name) for name in runs[0]}
    found["auc_less_that_of_peer"] = found["auc"] - mean(peers, "auc")
    for name in ("of_steps", "dense", "between_nodes"):
        found[f"{name}_share"] = found[name] / mean(peers, name) if mean(peers, name) else 0.0
    whole = mean(peers, "whole_between_nodes")
    found["between_nodes_of_whole"] = found["between_nodes"] / whole if whole else 0.0
    return found


def modes(options: argparse.Namespace, folder: Path) -> report.Found:
    """Compare the modes of `ranks:` in AUC and bytes.

    A mode is compared with synchronous float32 with the same number of ranks and the same seeds.
    Bytes are those that the ranks counted as sent to each other in the pass, per instance: ids,
    rows and gradients of the steps, and what error feedback sends at the end. Bytes between nodes
    are those of 2 nodes with one rank each (2x1).

    Between nodes, a row without an embedx is sent without one in every format, float32 included,
    and so is its gradient. Within a node, synchronous float32 sends rows whole, because that is
    faster. The other formats and asynchronous steps leave absent embedx out there too. They are
    compared with float32 between 2x1 ranks, because within a node the comparison would credit the
    mode with that.

    For modes whose rows and gradients have one format, they are also compared with the bytes that
    one level would send between nodes as float32 if every row, even without an embedx, were sent
    whole: 8 (3 + D) + 4 bytes per row.

    Goals: quantized formats change the mean AUC by at most 0.001. They send at most 0.45 (int8) or
    0.60 (16 bits) of the bytes that rows and gradients of the steps have as float32, ids included,
    with D 16 and D 64, with the config's threshold and with an embedx in every row.
    """
    split = criteo_split()
    wanted = list(dict.fromkeys(m for mode in options.modes for m in (MODES[mode][1], mode)))
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in wanted}
    for seed in range(1, options.seeds + 1):
        for mode in wanted:
            runs[mode].append(train_mode(folder, mode, seed, split))
            print(f"seed {seed} {mode:24}", json.dumps(runs[mode][-1]), flush=True)
    figures: dict[str, Any] = {}
    goals = []
    for mode in wanted:
        found = figures[mode] = summary(runs[mode], runs[MODES[mode][1]]) | {"runs": runs[mode]}
        print(
            f"{mode:24} AUC {found['auc']:.4f} ({found['auc_less_that_of_peer']:+.4f})  bytes per "
            f"instance: steps {found['of_steps']:.0f} ({found['of_steps_share']:.3f}), left "
            f"{found['left']:.0f}, dense {found['dense']:.0f} ({found['dense_share']:.3f}); "
            f"between nodes {found['between_nodes']:.0f} ({found['between_nodes_share']:.3f}, "
            f"{found['between_nodes_of_whole']:.3f} of whole rows)"
        )
        if (format_ := mode.partition("_2x1")[0]) in _BOUNDS:
            share, bound = found["of_steps_share"], _BOUNDS[format_]
            goals.append(report.at_most(f"{mode}: bytes of float32", share, bound))
            gap = abs(found["auc_less_that_of_peer"])
            goals.append(report.at_most(f"{mode}: change of AUC", gap, AUC_BOUND))
    return figures, goals


# ---- parity

COMMIT_TIMES = 1.3
HIDDEN = [128, 64]


def train_parity(folder: Path, ranks: int, batch: int, parity: int) -> list[Path]:
    """Train or resume a job. Returns the run dirs of its ranks."""
    run_dir = folder / f"run-{parity}"
    files = sorted(folder.glob("part-*.txt"))[: PASSES * ranks]
    command = [
        *launcher(ranks, folder / "log"), "tools/train.py", "-c", str(folder / "config.yaml"),
        "--run-dir", str(run_dir), *overrides(files, ranks, batch),
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
    train_parity(folder, len(run_dirs), batch, len(run_dirs))
    return time.monotonic() - began, digests(run_dirs[lost]) == before, size


def parity_turns(folder: Path, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    turns, rebuilt = [], []
    for turn in range(options.turns):
        done = {}
        for parity in (0, ranks) if turn % 2 else (ranks, 0):
            shutil.rmtree(folder / f"run-{parity}", ignore_errors=True)
            run_dirs = train_parity(folder, ranks, options.batch, parity)
            done[parity] = figures_of(run_dirs)
            if parity:
                done[parity]["stored"] = stored(run_dirs)
                lost = 0 if turn % 2 else ranks - 1
                rebuilt.append(rebuild(folder, run_dirs, options.batch, lost))
        turns.append({"without": done[0], "with": done[ranks]})
        print(f"{ranks} ranks, turn {turn}: {turns[-1]}, rebuilt {rebuilt[-1]}", flush=True)
    return {"turns": turns, "rebuilt": rebuilt}


def parity_goals(ranks: int, found: dict[str, Any]) -> list[report.Goal]:
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
        report.at_most(f"{ranks} ranks, commit seconds: times", ratios("commit_s"), COMMIT_TIMES),
        report.at_least(f"{ranks} ranks, rebuilt to the bit", equal, 1.0),
    ]


def parity(options: argparse.Namespace, folder: Path) -> report.Found:
    """Compare jobs with parity across ranks with jobs without, and rebuild a lost folder.

    Jobs train the data of `rates` (100 bytes a row with its key), with `ranks.parity` set to the
    number of ranks and with 0. The two take turns, in alternating order, on the same cores. There
    are more ranks than cores on a small machine; both jobs have the same. The figures are of the
    passes after the first, of all ranks:

      commit   seconds from the end of a pass until its commit is durable, while the next pass
               trains. With parity they contain the wait for the parity of the commit before
      pass     seconds of a pass
      stored   bytes that parity adds on disk, for each byte of the files of the newest version:
               the sets, and files that merges removed but that a set still depends on

    Then the folder of one rank is deleted, the first rank's in every second turn, and the job
    starts again. It trains nothing, and must end with the digests from before.
    """
    write_data(folder, max(options.ranks), options.rows, options.keys, options.seed)
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    for ranks in options.ranks:
        figures[str(ranks)] = found = parity_turns(folder, ranks, options)
        goals += parity_goals(ranks, found)
    return figures, goals


# ---- bytes


def on_paper(options: argparse.Namespace, _: Path) -> report.Found:
    """Count what schemes of exchange would send between two nodes."""
    return schemes.shares(options.dims, options.threshold), []


# ---- the parts

PARTS: dict[str, report.Part] = {
    "rates": rates,
    "auc": auc,
    "modes": modes,
    "parity": parity,
    "bytes": on_paper,
}


def main() -> int:
    parser, of = report.parts("ranks", __doc__, PARTS)
    for name, ranks in (("rates", [1, 2, 4]), ("auc", [2, 4]), ("parity", [2, 4])):
        of[name].add_argument("--ranks", type=int, nargs="+", default=ranks)
    for name in ("auc", "modes"):
        of[name].add_argument("--seeds", type=int, default=5)
    for name, rows, keys, batch in (
        ("rates", 100_000, 2_000_000, 2048),
        ("parity", 20_000, 2_600_000, 512),
    ):
        of[name].add_argument("--rows", type=int, default=rows, help="rows per rank and pass")
        of[name].add_argument("--keys", type=int, default=keys)
        of[name].add_argument("--batch", type=int, default=batch, help="batch size of a rank")
        of[name].add_argument("--turns", type=int, default=3)
        of[name].add_argument("--seed", type=int, default=1)
    of["rates"].add_argument("--without-peers", action="store_true")
    of["rates"].add_argument(
        "--ps-python", type=Path, default=report.ROOT / ".venv-bench-ps/bin/python",
        help="Python of the environment with Paddle 3.0.0, from make bench-setup-ps",
    )  # fmt: skip
    of["modes"].add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    of["bytes"].add_argument("--dims", type=int, nargs="+", default=[16, 64])
    of["bytes"].add_argument(
        "--threshold", type=float, default=10.0, help="-1: every row has an embedx"
    )
    options = parser.parse_args()
    hidden = ("part", "scratch", "ps_python")
    return report.timed(options, lambda at: PARTS[options.part](options, at), hidden=hidden)


if __name__ == "__main__":
    report.run(main)
