#!/usr/bin/env python3
"""Generates click data from a planted model, with power-law features, as MultiSlot text.

    python datasets/synthetic/prepare.py --out data/synthetic --seed 1

Writes train-<pass>.txt, test.txt and, at the end, summary.json. If the folder already holds a
complete set with the same parameters, nothing is written. README.md describes the planted model.

Every random number is a hash of (seed, stream, index). So the rows depend neither on numpy's
generators nor on the order in which they are made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

GENERATOR = 1  # part of the parameters: increase it if the same seed now gives other rows
ROW_BYTES = 80  # approximate size of a row with embedx_dim 8: key 8, floats 72
CHUNK_ROWS = 20_000
DENSE = 4
RANK = 4  # dimensions of the vectors of the planted interactions
BIAS = -2.0


@dataclass(frozen=True)
class SlotLaw:
    """How a slot draws its feasigns, and how large their effects are."""

    name: str
    vocabulary: int
    exponent: float  # of the power law over ranks
    max_ids: int  # the number of feasigns of a row is uniform from 1 to max_ids
    fresh: float  # share of the draws from a vocabulary that only this pass has
    weight: float  # standard deviation of the effect of the most frequent feasigns


SLOTS = (
    SlotLaw("user", 300_000, 0.95, 1, 0.06, 1.1),
    SlotLaw("item", 150_000, 1.05, 1, 0.06, 1.1),
    SlotLaw("query", 200_000, 1.05, 1, 0.04, 0.8),
    SlotLaw("history", 150_000, 1.05, 3, 0.04, 0.5),
    SlotLaw("words", 60_000, 1.0, 3, 0.0, 0.5),
    SlotLaw("tags", 20_000, 1.1, 3, 0.0, 0.5),
    SlotLaw("publisher", 2_000, 1.0, 1, 0.0, 0.8),
    SlotLaw("category", 300, 0.8, 1, 0.0, 0.7),
    SlotLaw("region", 400, 0.9, 1, 0.0, 0.5),
    SlotLaw("device", 50, 0.8, 1, 0.0, 0.5),
)
# Pairs of slots whose first feasigns interact, and the factor for the product of their vectors.
PAIRS = (("category", "device", 0.18), ("publisher", "category", 0.15), ("item", "region", 0.15))
DENSE_WEIGHTS = (0.4, -0.3, 0.2, 0.0)


def mix(x: Words) -> Words:
    """The final step of splitmix64: a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(seed: int, stream: str, index: Words) -> Floats:
    """A random number in [0, 1) for each index. Different streams are independent."""
    start = np.array([seed % 2**64], dtype=np.uint64)
    for byte in stream.encode():
        start = mix(start ^ np.uint64(byte)) + np.uint64(0x9E3779B97F4A7C15)
    return (mix(mix(index + start) ^ start) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def spread(u: Floats) -> Floats:
    """Scales uniform numbers in [0, 1) to mean 0 and variance 1."""
    return (2.0 * u - 1.0) * float(np.sqrt(3.0))


class Vocabulary:
    """The feasigns of a slot by position: first those that all passes have, the most frequent
    first, then those that only one pass has."""

    def __init__(self, law: SlotLaw, seed: int) -> None:
        self.law = law
        self.seed = seed
        mass = np.arange(1, law.vocabulary + 1, dtype=np.float64) ** -law.exponent
        self.cumulative = np.cumsum(mass) / mass.sum()

    def draw(self, u: Floats, fresh: npt.NDArray[np.bool_], pass_number: int) -> Ints:
        """Positions: rank + vocabulary * (1 + pass if fresh, else 0)."""
        rank = np.searchsorted(self.cumulative, u, side="right").astype(np.int64)
        rank = np.minimum(rank, self.law.vocabulary - 1)
        return rank + np.where(fresh, (1 + pass_number) * self.law.vocabulary, 0)

    def feasigns(self, positions: Ints) -> Words:
        """Feasigns over the whole range of 64 bits, and never 0, which is padding."""
        salt = int(
            uniform(self.seed, f"feasign {self.law.name}", np.zeros(1, np.uint64))[0] * 2**53
        )
        words = mix(positions.astype(np.uint64) + (np.uint64(salt) << np.uint64(11)))
        return np.where(words == 0, np.uint64(1), words)

    def tail(self, positions: Ints) -> Floats:
        """Factor of the effects: 1 for the most frequent feasign, less for rarer ones, because a
        feasign that occurs once cannot be learned."""
        return 1.0 / (1.0 + (positions % self.law.vocabulary) / 50.0)

    def weights(self, positions: Ints) -> Floats:
        u = uniform(self.seed, f"weight {self.law.name}", positions.astype(np.uint64))
        return self.law.weight * spread(u) * self.tail(positions)

    def vectors(self, positions: Ints, pair: str) -> Floats:
        index = positions.astype(np.uint64)
        columns = [
            uniform(self.seed, f"vector {self.law.name} {pair} {k}", index) for k in range(RANK)
        ]
        return spread(np.stack(columns, axis=1)) * self.tail(positions)[:, None]


@dataclass
class Rows:
    """n rows as they are written, and the probabilities from which the labels were drawn."""

    labels: npt.NDArray[np.bool_]  # (n)
    probability: Floats  # (n)
    dense: Ints  # (n, DENSE), in thousandths
    feasigns: list[Words]  # of each slot: the feasigns of all rows, one row after the other
    lengths: list[Ints]  # of each slot: (n), the number of feasigns of each row


def draw_positions(vocabulary: Vocabulary, seed: int, row: Words, day: int) -> tuple[Ints, ...]:
    """Draws the feasigns of n rows in a slot, m in all.

    Returns: (n) how many a row has; (m) the row of each, from 0; (m) their positions.
    """
    law = vocabulary.law
    length = 1 + (uniform(seed, f"count {law.name}", row) * law.max_ids).astype(np.int64)
    owner = np.repeat(np.arange(len(row)), length)
    within = np.arange(len(owner)) - (np.cumsum(length) - length)[owner]
    index = row[owner] * np.uint64(law.max_ids) + within.astype(np.uint64)
    fresh = uniform(seed, f"fresh {law.name}", index) < law.fresh
    return length, owner, vocabulary.draw(uniform(seed, f"rank {law.name}", index), fresh, day)


def make_rows(
    vocabularies: list[Vocabulary],
    seed: int,
    first: int,
    count: int,
    day: int,
    bias: float = BIAS,
) -> Rows:
    """Makes rows first .. first + count - 1, drawn from the vocabularies of pass ``day``."""
    row = np.arange(first, first + count, dtype=np.uint64)
    logit = np.full(count, bias)
    dense = np.stack(
        [(uniform(seed, f"dense {k}", row) * 2001).astype(np.int64) - 1000 for k in range(DENSE)],
        axis=1,
    )
    logit += spread((dense + 1000) / 2001) @ np.array(DENSE_WEIGHTS)
    first_id: dict[str, tuple[Vocabulary, Ints]] = {}
    feasigns, lengths = [], []
    for vocabulary in vocabularies:
        law = vocabulary.law
        length, owner, positions = draw_positions(vocabulary, seed, row, day)
        logit += np.bincount(owner, vocabulary.weights(positions), minlength=count)
        first_id[law.name] = (vocabulary, positions[np.cumsum(length) - length])
        feasigns.append(vocabulary.feasigns(positions))
        lengths.append(length)
    for left, right, scale in PAIRS:
        (a, at), (b, bt) = first_id[left], first_id[right]
        pair = f"{left} x {right}"
        logit += scale * (a.vectors(at, pair) * b.vectors(bt, pair)).sum(axis=1)
    probability = 1.0 / (1.0 + np.exp(-logit))
    return Rows(uniform(seed, "label", row) < probability, probability, dense, feasigns, lengths)


_THOUSANDTHS = pa.array([f"{k / 1000:.3f}" for k in range(-1000, 1001)])


def to_text(rows: Rows) -> pa.Buffer:
    """The lines of the file, "n v1 .. vn n v1 .. vn ..\\n": label, dense, then each slot."""
    columns: list[Any] = [pa.scalar("1"), pa.array(rows.labels.astype(np.int8)).cast(pa.string())]
    columns.append(pa.scalar(str(DENSE)))
    columns += [_THOUSANDTHS.take(pa.array(rows.dense[:, k] + 1000)) for k in range(DENSE)]
    for feasigns, length in zip(rows.feasigns, rows.lengths, strict=True):
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(feasigns).cast(pa.string()))
        columns += [pa.array(length).cast(pa.string()), pc.binary_join(lists, " ")]
    lines = pc.binary_join_element_wise(*columns, " ")
    lines = pc.binary_join_element_wise(lines, pa.scalar(""), "\n")
    # The third buffer of a string array holds its values one after the other: the file's text.
    return lines.buffers()[2]


def best_auc(probability: Floats, labels: npt.NDArray[np.bool_]) -> float:
    """AUC of the true probabilities. A model can exceed it only by chance. Ties count half."""
    _, group, size = np.unique(probability, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(size) - (size - 1) / 2.0
    clicks = int(labels.sum())
    above = mean_rank[group][labels].sum() - clicks * (clicks + 1) / 2.0
    return float(above / (clicks * (len(labels) - clicks)))


@dataclass(frozen=True)
class Parameters:
    seed: int
    passes: int
    rows_per_pass: int
    test_rows: int
    generator: int = GENERATOR


def generate(out: Path, parameters: Parameters) -> dict[str, Any]:
    """Writes all files and returns the summary."""
    out.mkdir(parents=True, exist_ok=True)
    _forget_old_set(out)
    seed = parameters.seed
    vocabularies = [Vocabulary(law, seed) for law in SLOTS]
    sizes = [(f"train-{i:03}.txt", parameters.rows_per_pass, i) for i in range(parameters.passes)]
    # The test rows come from the vocabulary of the last pass, as if that pass continued.
    sizes.append(("test.txt", parameters.test_rows, parameters.passes - 1))
    files, first, keys = {}, 0, np.zeros(0, np.uint64)
    for name, count, day in sizes:
        parts = []
        with open(out / f"{name}.tmp", "wb") as file:
            for done in range(0, count, CHUNK_ROWS):
                size = min(CHUNK_ROWS, count - done)
                parts.append(make_rows(vocabularies, seed, first + done, size, day))
                file.write(to_text(parts[-1]))
        os.replace(out / f"{name}.tmp", out / name)
        first += count
        here = np.unique(np.concatenate([ids for part in parts for ids in part.feasigns]))
        labels = np.concatenate([part.labels for part in parts])
        files[name] = {
            "rows": count,
            "bytes": (out / name).stat().st_size,
            "unique_keys": len(here),
            "keys_seen_in_training_before": len(np.intersect1d(here, keys, assume_unique=True)),
            "click_rate": round(float(labels.mean()), 6),
        }
        if name != "test.txt":
            keys = np.union1d(keys, here)
    probability = np.concatenate([part.probability for part in parts])
    likelihood = np.where(labels, probability, 1.0 - probability)
    summary = {
        "parameters": asdict(parameters),
        "files": files,
        "train_rows": parameters.passes * parameters.rows_per_pass,
        "unique_keys": len(keys),
        "row_bytes": ROW_BYTES,
        "model_bytes": len(keys) * ROW_BYTES,
        "best_auc": round(best_auc(probability, labels), 6),
        "best_logloss": round(float(-np.log(likelihood).mean()), 6),
    }
    # Written at the end, by renaming: if it exists, the set is complete.
    (out / "summary.json.tmp").write_text(json.dumps(summary, indent=2) + "\n")
    os.replace(out / "summary.json.tmp", out / "summary.json")
    return summary


def complete(out: Path, parameters: Parameters) -> dict[str, Any] | None:
    """The summary in ``out`` if its files exist and were made with ``parameters``, else None."""
    summary = _read_summary(out)
    if summary.get("parameters") != asdict(parameters):
        return None
    for name, file in summary["files"].items():
        path = out / name
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            return None
    return summary


def _read_summary(out: Path) -> dict[str, Any]:
    try:
        summary = json.loads((out / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _forget_old_set(out: Path) -> None:
    # Otherwise files of an earlier, larger set match the globs of the configs and are trained.
    for name in _read_summary(out).get("files", {}):
        (out / Path(name).name).unlink(missing_ok=True)
    (out / "summary.json").unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generate click data from a planted model.")
    parser.add_argument(
        "--out", type=Path, default=Path("data/synthetic"), help="folder to write to"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--passes", type=int, default=6, help="number of training files")
    parser.add_argument("--rows-per-pass", type=int, default=150_000)
    parser.add_argument("--test-rows", type=int, default=50_000)
    options = parser.parse_args(arguments)
    counts = (options.passes, options.rows_per_pass, options.test_rows)
    if min(counts) < 1 or options.seed < 0:
        parser.error("expected counts of 1 or more, and --seed of 0 or more")
    parameters = Parameters(options.seed, *counts)
    started = time.monotonic()
    summary = complete(options.out, parameters)
    how = "complete already"
    if summary is None:
        summary = generate(options.out, parameters)
        how = f"written in {time.monotonic() - started:.1f} s"
    print(f"{options.out}: {summary['train_rows']:,} rows in {options.passes} passes, {how}")
    print(
        f"model: {summary['unique_keys']:,} keys x {ROW_BYTES} bytes = "
        f"{summary['model_bytes'] / 2**20:.1f} MiB"
    )
    print(
        f"best possible result on the {options.test_rows:,} rows of test.txt: "
        f"AUC {summary['best_auc']:.4f}, logloss {summary['best_logloss']:.4f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
