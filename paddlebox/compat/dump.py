"""Text dumps of variables and parameters while a program trains, in PaddleBox's format."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from paddlebox import _native
from paddlebox.data.dataset import Dataset
from paddlebox.data.sequences import PassSequences
from paddlebox.errors import PassError, StoreError

_MOST_BYTES = 1 << 31  # of a file; then the next one begins
# Values of dump_mode.
ALL, BY_ID, RANDOM = 0, 1, 2


class TrainingDump:
    """Writes variables of the instances, and parameters, of every batch that a program trains.

        fields, params = {"prob": prediction}, ["linear_0.w_0"]
        with TrainingDump("dump/20240101", dataset, fields, program, params) as dump:
            paddlebox.train_from_dataset(
                exe, program, dataset, loss=loss,
                fetch_list=dump.fields, fetch_handler=dump.take, watch=dump.write,
            )

    The files are FOLDER/part-<rank>-00000-<number>; a file ends at 2 GiB. They have one line for
    each instance, and one line for each parameter after each batch, from 0 in each call of
    train_from_dataset:

        <ins_id>\\t<variable>:<n>:<value>:<value>...
        (<batch>,<parameter>,<n>):<value>:<value>...

    Instances that are only context, in sequences of users, have no lines. Floats have nine
    significant digits. int64 is written as uint64, as feasigns are. Without set_parse_ins_id the id
    is the number of the instance in the pass.

    Args:
        folder: where to write; it is created. Files of an earlier dump in it are an error.
        fields: name -> variable of the program with one row for each instance, (B, ...).
        params: names of parameters of `program`.
        mode: which instances are written. 0: all; 1: those whose id has a CRC-32 divisible by
            `interval` (PaddleBox uses another hash); 2: one of `interval`, drawn at random with a
            fixed seed.

    Raises: ValueError for a mode, an interval or a parameter that does not exist; StoreError if a
        file cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        dataset: Dataset,
        fields: Mapping[str, Any],
        program: Any = None,
        params: Sequence[str] = (),
        *,
        mode: int = ALL,
        interval: int = 1,
    ) -> None:
        if mode not in (ALL, BY_ID, RANDOM):
            raise ValueError(f"TrainingDump: expected mode 0, 1 or 2, found {mode}")
        if interval < 1:
            raise ValueError(f"TrainingDump: expected interval >= 1, found {interval}")
        self.fields, self._names = list(fields.values()), list(fields)
        self._folder, self._dataset = Path(folder), dataset
        self._program, self._params = program, list(params)
        self._mode, self._interval = mode, interval
        self._draws = random.Random(0)
        self._instances = self._batches = self._files = 0
        self._taken: list[np.ndarray] = []
        self._file: TextIO | None = None
        self._parameters()  # checks the names

    def __enter__(self) -> TrainingDump:
        self._open_next()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()  # every batch was flushed
            self._file = None

    def take(self, values: Sequence[Any]) -> None:
        """Keep the values of `fields` of a step, for `write`: the `fetch_handler` of
        train_from_dataset."""
        self._taken = [np.asarray(value) for value in values]

    def write(self, batches: int, samples: int, *_: Any) -> None:
        """Write the last step: the `watch` of train_from_dataset, which does not call it for a step
        in which only other ranks have instances. batches, samples: their numbers so far. Raises:
        ValueError if a value has not one row for each instance."""
        self._check_open()
        begin = self._instances if batches > self._batches else 0
        size, self._instances, self._batches = samples - begin, samples, batches
        rows = self._rows(begin, begin + size)
        size = max(size, int(rows.max(initial=-1)) + 1)
        for name, array in zip(self._names, self._taken, strict=True):
            if array.ndim == 0 or len(array) < size:
                raise ValueError(
                    f"TrainingDump: {name}: expected one row for each of {size} instances, "
                    f"found shape {array.shape}"
                )
        arrays = [array[rows] for array in self._taken]
        ids = self._ids(begin, begin + len(rows))
        written = [row for row, ins_id in enumerate(ids) if self._wanted(ins_id)]
        columns = [
            [f"\t{name}:{text.count(':')}{text}" for text in _texts(array[written])]
            for name, array in zip(self._names, arrays, strict=True)
        ]
        lines = zip((ids[row] for row in written), *columns, strict=True)
        self._write("".join("".join(line) + "\n" for line in lines))
        for name, array in self._parameters().items():
            (text,) = _texts(array.reshape(1, -1))
            self._write(f"({batches - 1},{name},{array.size}){text}\n")

    def _rows(self, begin: int, end: int) -> np.ndarray:
        """The rows of the instances [begin, end) in their batch. A batch of sequences of users has
        other rows too, of instances that are only context."""
        sequences = self._sequences()
        return np.arange(end - begin) if sequences is None else sequences.rows(begin, end)

    def _ids(self, begin: int, end: int) -> list[str]:
        sequences, places = self._sequences(), np.arange(begin, end)
        if sequences is not None:
            places = sequences.trained_places(begin, end)
        return self._dataset.ids_at(places)

    def _sequences(self) -> PassSequences | None:
        """The sequences of users of the open pass, if it has them."""
        current = self._dataset._stager.current
        return current.loaded.sequences if current is not None else None

    def _wanted(self, ins_id: str) -> bool:
        if self._mode == BY_ID:
            return zlib.crc32(ins_id.encode()) % self._interval == 0
        return self._mode == ALL or self._draws.randrange(self._interval) == 0

    def _parameters(self) -> dict[str, np.ndarray]:
        if not self._params:
            return {}
        found = self._program.state_dict("param", _native.paddle.static.global_scope())
        if unknown := [name for name in self._params if name not in found]:
            raise ValueError(
                f"TrainingDump: no parameter {', '.join(unknown)}; there are: "
                f"{', '.join(sorted(found))}"
            )
        return {name: np.asarray(found[name]) for name in self._params}

    def _write(self, text: str) -> None:
        file = self._check_open()
        try:
            file.write(text)
            file.flush()
            if file.tell() >= _MOST_BYTES:
                file.close()
                self._open_next()
        except OSError as error:
            raise StoreError(
                f"{file.name}: the dump cannot be written: {error.strerror or error}"
            ) from error

    def _check_open(self) -> TextIO:
        if self._file is None:
            raise PassError("TrainingDump: it writes only within a with statement")
        return self._file

    def _open_next(self) -> None:
        rank = self._dataset._table.world.rank
        path = self._folder / f"part-{rank:02d}-00000-{self._files:05d}"
        self._files += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115  # closed in __exit__
        except OSError as error:
            raise StoreError(
                f"{path}: the dump cannot be written: {error.strerror or error}"
            ) from error


def _texts(rows: np.ndarray) -> list[str]:
    """The text of each row, ":value:value..."."""
    flat = rows.reshape(len(rows), -1)
    if flat.dtype.kind == "f":
        return ["".join([f":{value:.9g}" for value in row]) for row in flat.tolist()]
    if flat.dtype.kind in "iu":
        # Feasigns are uint64 in int64.
        flat = flat.view(np.uint64) if flat.dtype == np.int64 else flat
        return ["".join([f":{value}" for value in row]) for row in flat.tolist()]
    raise ValueError(f"TrainingDump: expected floats or integers, found {flat.dtype}")
