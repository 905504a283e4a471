"""Writes the predictions of an evaluation, as text in PaddleBox's dump format or as Parquet.

Text has one line per instance, and floats with nine significant digits:

    <ins_id>\tlabel:1:<label>\tprediction:1:<probability>\t<slot>:1:<value>…
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddlebox.errors import ConfigError, StoreError

# Returns the ids of instances, by their places in the order of the batches.
InsIds = Callable[[np.ndarray], Sequence[str]]


class PredictionDump:
    """Writes a dump file. It appears under its name only once it is complete.

    Args:
        path: the file to write: Parquet if it ends with .parquet, else text.
        columns: slots to write besides label and prediction. An instance has one value per slot:
            the first feasign of a sparse slot (0 if none), or the first float of a dense slot.
        ins_ids: returns the ids of instances; None: the id is the number of the instance in the
            order of the files, from 0. Malformed lines are not counted; late lines are.

    Raises:
        ConfigError: `columns` names a column that every dump has.
        StoreError: the file cannot be written.
    """

    def __init__(
        self, path: Path, columns: Sequence[str] = (), ins_ids: InsIds | None = None
    ) -> None:
        for name in columns:
            if name in ("ins_id", "label", "prediction"):
                raise ConfigError(f"dump: a slot named {name} collides with a column of every dump")
        self.path, self.ins_ids = path, ins_ids
        self.columns: Sequence[str] = list(columns)
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._parquet: Any = None
        self._text: TextIO | None = None
        if path.suffix != ".parquet":
            try:
                self._text = open(self._temporary, "w")  # noqa: SIM115  # closed in __exit__
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(f"{self.path}: the dump cannot be written: {error.strerror or error}")

    def add(
        self,
        predictions: np.ndarray,
        labels: np.ndarray,
        columns: Mapping[str, np.ndarray],
        places: np.ndarray,
    ) -> None:
        if self.ins_ids is not None:
            ids = list(self.ins_ids(places))
        else:
            ids = [str(place) for place in places.tolist()]
        values = {"label": labels, "prediction": predictions}
        values |= {name: columns[name] for name in self.columns}
        # With several tasks, the label and prediction of each.
        values |= {k: v for k, v in columns.items() if k.startswith(("label_", "prediction_"))}
        try:
            if self._text is not None:
                self._text.writelines(_lines(ids, values))
            else:
                batch = pa.table({"ins_id": ids, **{k: pa.array(v) for k, v in values.items()}})
                if self._parquet is None:
                    self._parquet = pq.ParquetWriter(
                        self._temporary, batch.schema, compression="zstd"
                    )
                self._parquet.write_table(batch)
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> PredictionDump:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for file in (self._text, self._parquet):
                if file is not None:
                    file.close()
            if kind is None and self._temporary.exists():
                self._temporary.rename(self.path)
            else:
                self._temporary.unlink(missing_ok=True)
        except OSError as failed:
            self._temporary.unlink(missing_ok=True)
            if kind is None:
                raise self._failed(failed) from failed


def _lines(ids: Sequence[str], values: Mapping[str, np.ndarray]) -> list[str]:
    columns = [
        [f"\t{name}:1:{value}" if exact else f"\t{name}:1:{value:.9g}" for value in array.tolist()]
        for name, array in values.items()
        for exact in [array.dtype.kind in "iu"]
    ]
    return ["".join(parts) + "\n" for parts in zip(ids, *columns, strict=True)]
