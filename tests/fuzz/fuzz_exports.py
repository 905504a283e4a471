"""Damaged export files: each is served exactly as the sound one, or refused with an error of ours.

    python tests/fuzz/fuzz_exports.py FILE --files 2000 [--seed N]

Run it in a process of its own: a file that ends the process is a finding.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from paddlebox.errors import PaddleBoxError
from paddlebox.serving import Predictor
from paddlebox.serving.writer import Writer

_PAGE = 4096
_PATIENCE_S = 60


def mutate(data: bytes, trees: list[int], chance: random.Random) -> bytes:
    """trees: pages of the file that hold no values. Half of the damage is there."""
    out = bytearray(data)
    kind = chance.randrange(6)
    if kind == 0:
        cut = chance.randrange(len(out) + 1)
        return bytes(out[: cut // _PAGE * _PAGE if chance.random() < 0.5 else cut])
    for _ in range(chance.randint(1, 3)):
        page = (
            chance.choice(trees) if chance.random() < 0.5 else chance.randrange(len(out) // _PAGE)
        )
        begin = page * _PAGE
        at = begin + min(int(chance.expovariate(1 / 200)), _PAGE - 8)  # most often in the header
        if kind == 1:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            size = chance.choice((1, 2, 4, 8))
            value = chance.choice(
                (0, 1, 2**63, 2**64 - 1, chance.getrandbits(64), len(out) // _PAGE)
            )
            out[at : at + size] = value.to_bytes(8, "little")[:size]
        elif kind == 3:
            out[begin : begin + _PAGE] = bytes(_PAGE)
        elif kind == 4:
            other = chance.randrange(len(out) // _PAGE) * _PAGE
            out[begin : begin + _PAGE] = data[other : other + _PAGE]
        else:
            out[at : at + 64] = chance.randbytes(min(64, len(out) - at))
    return bytes(out)


def tree_pages(data: bytes) -> list[int]:
    return [
        page
        for page in range(len(data) // _PAGE)
        if int.from_bytes(data[page * _PAGE : page * _PAGE + 8], "little") == page
        and data[page * _PAGE + 10] in (1, 2, 8)
    ]


def served(path: Path, feasigns: np.ndarray) -> np.ndarray:
    """Predictions of instances whose slots all have one of the feasigns."""
    with Predictor(path, follow_s=0, resident_bytes=0) as predictor:
        predictor.warm()
        _, slots = predictor.model
        count = len(slots.sparse)
        offsets = np.arange(len(feasigns) * count + 1, dtype=np.int32)
        dense = np.zeros((len(feasigns), slots.dense_width), np.float32)
        return predictor.predict_feasigns(np.repeat(feasigns, count), offsets, dense)


def fuzz(source: Path, files: int, seed: int) -> dict[str, int]:
    """How many files were served and refused."""
    data, chance = source.read_bytes(), random.Random(seed)
    trees, feasigns = tree_pages(data), np.arange(1, 4001, dtype=np.uint64)
    expected, counts = served(source, feasigns), {"served": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            path = Path(folder) / f"export-{number}"
            path.write_bytes(mutate(data, trees, chance))
            print(f"seed {seed}: file {number}", file=sys.stderr, flush=True)
            signal.alarm(_PATIENCE_S)
            try:
                with Writer(path) as writer:  # it also reads the lists of free pages
                    writer.generations()
            except PaddleBoxError:
                pass
            try:
                found = served(path, feasigns)
            except PaddleBoxError:
                counts["refused"] += 1
            else:
                assert np.array_equal(found, expected), f"seed {seed}: file {number} differs"
                counts["served"] += 1
            signal.alarm(0)
            for left in Path(folder).iterdir():
                left.unlink()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(fuzz(given.file, given.files, given.seed))


if __name__ == "__main__":
    main()
