"""Criteo's lines, which benchmarks share, and the features of its regressions."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report

BUCKETS = 1 << 20


def criteo_lines() -> list[str]:
    """The lines in time order. Raises: UnavailableError if the data is missing."""
    source = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data")) / "criteo" / "train.tsv.gz"
    if not source.is_file():
        raise report.UnavailableError(
            f"{source} does not exist; set PADDLEBOX_DATA to the folder of real data"
        )
    with gzip.open(source, "rt") as file:
        return file.readlines()


def criteo_split() -> tuple[list[str], list[str]]:
    """The lines for training and those for evaluation. Raises as `criteo_lines` does."""
    lines = criteo_lines()
    cut = len(lines) * 4 // 5
    return lines[:cut], lines[cut:]


def features(lines: list[str]) -> tuple[Any, np.ndarray]:
    """The 39 sparse features that ops/feed/text/criteo.cc makes, hashed into 2^20 columns, and the
    labels."""
    from scipy.sparse import csr_matrix

    indices: list[int] = []
    starts = [0]
    labels = np.empty(len(lines), np.int64)
    for row, line in enumerate(lines):
        columns = line.rstrip("\n").split("\t")
        labels[row] = int(columns[0])
        for column, token in enumerate(columns[1:], 1):
            if column > 13 and not token:
                continue
            if column <= 13 and token:
                value = int(token)
                token = str(math.floor(math.log(value) ** 2) if value > 2 else value)
            indices.append(zlib.crc32(f"{column}={token}".encode()) % BUCKETS)
        starts.append(len(indices))
    matrix = csr_matrix(
        (np.ones(len(indices), np.float32), indices, starts), shape=(len(lines), BUCKETS)
    )
    matrix.sum_duplicates()
    return matrix, labels


def with_logarithms(lines: list[str]) -> tuple[Any, np.ndarray]:
    """The 39 hashed features, followed by the 13 logarithms that the models also see."""
    from scipy.sparse import csr_matrix, hstack

    matrix, labels = features(lines)
    integers = [line.rstrip("\n").split("\t")[1:14] for line in lines]
    logarithms = [[math.log1p(max(float(one or 0), 0)) for one in row] for row in integers]
    return hstack([matrix, csr_matrix(np.array(logarithms, np.float32))]).tocsr(), labels


Features = Callable[[list[str]], tuple[Any, np.ndarray]]
# What the regressions see.
FEATURES: dict[str, Features] = {"regression": features, "with logs": with_logarithms}
