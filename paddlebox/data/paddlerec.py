"""A reader of PaddleRec as a parser plugin: its class RecDataset, from files to samples.

It is Python, line by line, so it keeps the trainer waiting where a format of ours would not; and it
is code, so it runs only where `security.allow_commands` says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config.code import load_named
from paddlebox.errors import DataError

ALWAYS = "always"  # a slot of one feasign, where a reader gives none


def samples(reader: str | Path, config: Mapping[str, Any], lines: bytes) -> Iterator[list[Any]]:
    """What a reader makes of whole lines: a list of arrays for each sample.

    Args:
        reader: its file. config: PaddleRec's, with dotted names.

    Raises: ConfigError when the file has no RecDataset, DataError when a sample is no list.
    """
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
    """What `data.parser` names: from bytes to columns.

    Args:
        names: of the slots, for each array of a sample.
        single: those of them that are one number an instance.
    """

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
