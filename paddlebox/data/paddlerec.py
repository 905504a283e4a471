"""Runs a reader of PaddleRec, a class RecDataset, as a parser plugin.

The reader parses line by line in Python. It is much slower than the formats of this package, so the
trainer may have to wait for it. It is code, and runs only with `security.allow_commands`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config.code import load_named
from paddlebox.errors import DataError

ALWAYS = "always"  # a slot with one constant feasign, for readers that return no sparse slots


def samples(reader: str | Path, config: Mapping[str, Any], lines: bytes) -> Iterator[list[Any]]:
    """The samples that a reader, a file, returns for whole lines, each a list of arrays. config: of
    PaddleRec, with dotted names. Raises: ConfigError if the file has no RecDataset; DataError if a
    sample is not a list."""
    made = load_named(f"{reader}:RecDataset", "reader")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part-0"
        path.write_bytes(lines)
        dataset = made([str(path)], dict(config))
        by_number = hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__")
        found = (dataset[n] for n in range(len(dataset))) if by_number else iter(dataset)
        for sample in found:
            if not isinstance(sample, (list, tuple)):
                raise DataError(
                    f"{reader}: expected lists of arrays, found {type(sample).__name__}"
                )
            yield [np.asarray(array).reshape(-1) for array in sample]


class ReaderParser:
    """The function that `data.parser` names: from bytes to columns. names: the slots of the arrays
    of a sample, in order. single: the slots with one number per instance."""

    def __init__(
        self,
        reader: str,
        config: Mapping[str, Any],
        names: Sequence[str],
        single: Sequence[str],
    ) -> None:
        self._reader, self._config = reader, dict(config)
        self._names, self._single = list(names), {*single}

    def __call__(self, data: bytes) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {name: [] for name in self._names}
        count = 0
        for sample in samples(self._reader, self._config, data):
            if len(sample) != len(self._names):
                raise DataError(f"expected {len(self._names)} arrays, found {len(sample)}")
            for name, array in zip(self._names, sample, strict=True):
                values = array.tolist()
                columns[name].append(values[0] if name in self._single else values)
            count += 1
        return {**columns, ALWAYS: [[1]] * count}
