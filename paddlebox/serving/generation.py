"""One version of an export file, opened by a predictor, or by a writer that extends it.

The predictions of an ensemble are the means of the probabilities of its models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, ModelType, Slots
from paddlebox.config.check import validate
from paddlebox.config.stored import read_config
from paddlebox.errors import ConfigError, CorruptionError
from paddlebox.serving.fields import FieldParser, Unknown
from paddlebox.serving.file import ExportFile, Generation, layer_key, model_key, reading
from paddlebox.serving.program import USER, DenseProgram, UserProgram
from paddlebox.serving.users import UserRequest, UserScorer
from paddlebox.store.files import unseal

#: Instances; or candidates after a history, for a model that reads sequences.
Asked = Sequence[Mapping[str, Any]] | UserRequest


@dataclass(frozen=True)
class Limits:
    """What an open generation may use (`Predictor`). Raises: ValueError for a number out of
    range."""

    threads: int = 1
    resident_bytes: int = 0
    history_bytes: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = int(name == "threads")
            if value < least:
                raise ValueError(f"{name} {value}: expected {least} or more")

    def shared(self, models: int) -> Limits:
        """Those of one of the models."""
        resident, histories = self.resident_bytes // models, self.history_bytes // models
        return replace(self, resident_bytes=resident, history_bytes=histories)


class OpenRows:
    """The rows of table `number` of a generation. Valid until the read transaction ends.

    Args:
        before: the same table of the previous generation, whose tested blocks need no test.
        resident_bytes: the most bytes of blocks to copy into memory of this process.
        cvm: whether the model reads the CVM features; None: if rows have counts.
        clicks: cells whose shows and clicks a pull returns (models/click_prior.py).

    Raises: CorruptionError if a layer is incomplete.
    """

    def __init__(
        self,
        file: ExportFile,
        txn: Any,
        record: Generation,
        before: OpenRows | None = None,
        resident_bytes: int = 0,
        *,
        number: int = 0,
        cvm: bool | None = None,
        clicks: Sequence[int] = (),
    ) -> None:
        self.rows: list[int] = []  # rows of each layer, including deletions
        with reading(file.path):
            part = record.parts[number]
            self.table = core.ServeTable(
                str(file.path),
                part.embedx_dim,
                record.counts,
                record.precision,
                part.slots,
                record.dense_width,
                resident_bytes,
                record.counts if cvm is None else cvm,
                list(clicks),
                record.more_counts,
            )
            for layer in part.layers:
                self._add(file, txn, layer)
            if before is not None:
                self.table.adopt_tests(before.table)

    def _add(self, file: ExportFile, txn: Any, layer: int) -> None:
        about = file.record(txn, layer_key(layer, "about"))
        key = layer_key(layer, "filter")
        sealed = txn.get(key)
        unseal(bytes(sealed or b""), f"{file.path}: {key.decode()}")
        prefix = layer_key(layer, "block/")
        cursor = txn.cursor()
        values = cursor.iternext() if cursor.set_range(prefix) else ()
        blocks = [v for _, v in takewhile(lambda item: item[0][: len(prefix)] == prefix, values)]
        if not 0 <= about["bits"] <= 30 or len(blocks) != 1 << about["bits"]:
            raise CorruptionError(
                f"{file.path}: layer {layer} has {len(blocks)} blocks, expected 2^{about['bits']}"
            )
        self.table.add_layer(layer, about["bits"], blocks, about["filter"], sealed[4:])
        self.rows.append(about["rows"] + about["deleted"])


@dataclass(frozen=True)
class StoredModel:
    """A model of an export file. frozen: (program, parameters) as Paddle saves them."""

    config: Config
    slots: Slots
    frozen: tuple[bytes, bytes]
    feed: Mapping[str, Any]
    has_onnx: bool


def read_model(file: ExportFile, txn: Any, model: int) -> StoredModel:
    where = f"{file.path}: model {model}"
    with reading(file.path):
        config = read_config(json.loads(file.sealed(txn, model_key(model, "config"))), where)
        slots = validate(Slots, json.loads(file.sealed(txn, model_key(model, "slots"))), where)
        feed = file.record(txn, model_key(model, "feed"))
        frozen = file.sealed(txn, model_key(model, "program"))
        has_onnx = txn.get(model_key(model, "onnx")) is not None
    parameters = file.sealed(txn, model_key(model, "params"))
    return StoredModel(config, slots, (frozen, parameters), feed, has_onnx)


class OpenModel:
    """A model of a generation that can predict. Valid until the read transaction ends. record: the
    generation, or the record of a further model of it. before: as for `OpenRows`. unknown: as for
    FieldParser."""

    def __init__(
        self,
        file: ExportFile,
        txn: Any,
        record: Generation,
        limits: Limits,
        before: OpenModel | None,
        unknown: Unknown | None,
    ) -> None:
        stored = read_model(file, txn, record.model)
        self.config, self.slots, feed = stored.config, stored.slots, stored.feed
        parts, model = record.parts, self.config.model
        with reading(file.path):
            self.parts: list[OpenRows] = [
                OpenRows(
                    file,
                    txn,
                    record,
                    before.parts[number] if before is not None else None,
                    limits.resident_bytes // len(parts),
                    number=number,
                    cvm=feed["cvm"],
                    clicks=feed["clicks"],
                )
                for number in range(len(parts))
            ]
            tables = [part.table for part in self.parts]
            self._inputs: Any = core.ModelInputs(json.dumps(feed), tables)
            self._fields = FieldParser(feed, unknown)
        # `Slots` computes it at each access. With 39 slots that takes 35 us of a request.
        self._sparse_count = len(self.slots.sparse)
        # Dense fields that a request for vectors of users need not have: of the item's tower.
        item = getattr(model, "item", ()) if model.type is ModelType.DSSM else ()
        self._unread = {
            slot.column or slot.name: [0.0] * slot.dim
            for slot in self.slots.dense
            if slot.name in item and slot.read
        }
        self._users: UserScorer | None = None
        if model.reads_sequences:
            program = UserProgram(*stored.frozen, limits.threads)
            self._users = UserScorer(self._inputs, program, limits.history_bytes, self._fields)
        else:
            self._dense = DenseProgram(*stored.frozen, limits.threads, self._inputs.width)

    def user_vectors(self, instances: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """As `Predictor.user_vectors`."""
        if self._users is not None or not self._dense.has_towers:
            raise ConfigError(
                f"model.type {self.config.model.type.value}: the export has no vectors of users: "
                "expected a model with two towers, dssm, exported by this version of paddlebox"
            )
        if not instances:
            return np.zeros((0, 0), np.float32)
        parsed = self._fields.parse([{**self._unread, **instance} for instance in instances])
        return self._dense.run(len(instances), self._inputs.fill_parsed, parsed, output=USER)

    def predict(self, asked: Asked) -> np.ndarray:
        if isinstance(asked, UserRequest):
            if self._users is None:
                kind = self.config.model.type.value
                raise ConfigError(
                    f"model.type {kind} reads no history: call predict with instances"
                )
            return self._users.score(asked)
        self._check_reads_instances()
        if not asked and not isinstance(asked, Mapping):
            return np.zeros(0, np.float32)
        parsed = self._fields.parse(asked)
        return self._dense.run(len(asked), self._inputs.fill_parsed, parsed)

    def predict_feasigns(
        self, feasigns: Any, offsets: Any, dense: Any = None, weights: Any = None
    ) -> np.ndarray:
        self._check_reads_instances()
        if weights is not None and weights.shape != feasigns.shape:
            raise ValueError(
                f"weights have shape {weights.shape}, expected that of the feasigns, "
                f"{feasigns.shape}"
            )
        if len(offsets) <= 1:
            return np.zeros(0, np.float32)
        instances = (len(offsets) - 1) // self._sparse_count
        lists = feasigns, offsets, dense, weights
        return self._dense.run(instances, self._inputs.fill, *lists)

    def _check_reads_instances(self) -> None:
        if self.config.model.reads_sequences:
            raise ConfigError(
                f"model.type {self.config.model.type.value} reads the history of a user, which "
                "instances do not have: call predict_user with a history and candidates"
            )


class OpenGeneration:
    """A generation that can predict. `close` ends its read transaction. unknown: as for
    FieldParser."""

    def __init__(
        self,
        file: ExportFile,
        txn: Any,
        record: Generation,
        limits: Limits = Limits(),
        before: OpenGeneration | None = None,
        unknown: Unknown | None = None,
    ) -> None:
        self.record, self._txn = record, txn
        self.users = 0  # requests in flight, counted by the Predictor
        limits = limits.shared(len(record.models))
        # Only a file of one model has a generation before.
        old = before.models[0] if before is not None else None
        self.models: list[OpenModel] = []
        for member in record.models:
            self.models.append(OpenModel(file, txn, member, limits, old, unknown))
            if unknown is not None:
                unknown = _count_no_more  # further models read the same instances
        self.config, self.slots = self.models[0].config, self.models[0].slots

    def test_all(self) -> None:
        for model in self.models:
            for part in model.parts:
                part.table.test_all()

    def predict(self, asked: Asked) -> np.ndarray:
        """Raises: ConfigError if the model does not read what is asked; DataError."""
        return _mean([model.predict(asked) for model in self.models])

    def user_vectors(self, instances: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """As `Predictor.user_vectors`."""
        if len(self.models) > 1:
            raise ConfigError(
                f"an ensemble of {len(self.models)} models has as many vectors of a user: export "
                "one run to search"
            )
        return self.models[0].user_vectors(instances)

    def predict_feasigns(self, *parts: np.ndarray | None) -> np.ndarray:
        """parts: feasigns, offsets, dense and weights, as for `Predictor.predict_feasigns`."""
        return _mean([model.predict_feasigns(*parts) for model in self.models])

    def close(self) -> None:
        self._txn.abort()


def _count_no_more(_name: str, _count: int) -> None:
    pass


def _mean(predictions: Sequence[np.ndarray]) -> np.ndarray:
    if len(predictions) == 1:
        return predictions[0]
    return np.asarray(np.mean(predictions, axis=0, dtype=np.float64), np.float32)
