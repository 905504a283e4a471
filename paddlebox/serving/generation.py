"""One version of an export file, opened by a predictor, or by a writer that extends it.

The predictions of an ensemble are the means of the probabilities of its models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, ModelType, Slots
from paddlebox.config.check import validate
from paddlebox.config.fields import click_cells
from paddlebox.config.stored import read_config
from paddlebox.data.positions import Positions
from paddlebox.errors import ConfigError, CorruptionError
from paddlebox.serving.fields import FieldParser, Unknown
from paddlebox.serving.file import ExportFile, Generation, layer_key, model_key, reading
from paddlebox.serving.program import USER, DenseProgram, UserProgram
from paddlebox.serving.users import UserRequest, UserScorer
from paddlebox.store.files import unseal

_NO_DENSE = np.zeros(0, np.float32)
MOST_WEIGHT = 2.0**32  # of an id, as in training

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


def read_model(file: ExportFile, txn: Any, model: int) -> tuple[Config, Slots, tuple[bytes, bytes]]:
    """Read a model: the config, the slots, and (program, parameters) as Paddle saves them."""
    where = f"{file.path}: model {model}"
    with reading(file.path):
        config = read_config(json.loads(file.sealed(txn, model_key(model, "config"))), where)
        slots = validate(Slots, json.loads(file.sealed(txn, model_key(model, "slots"))), where)
        program = file.sealed(txn, model_key(model, "program"))
    return config, slots, (program, file.sealed(txn, model_key(model, "params")))


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
        self.config, self.slots, frozen = read_model(file, txn, record.model)
        parts, model = record.parts, self.config.model
        clicks = click_cells(model, self.slots)
        self.parts: list[OpenRows] = [
            OpenRows(
                file,
                txn,
                record,
                before.parts[number] if before is not None else None,
                limits.resident_bytes // len(parts),
                number=number,
                cvm=model.use_cvm,
                clicks=clicks,
            )
            for number in range(len(parts))
        ]
        self._rows: Any = self.parts[0].table
        if len(parts) > 1:
            names = [table.name for table in self.config.tables]
            self._rows = core.ServeTables(
                [part.table for part in self.parts], self.slots.tables(names), record.dense_width
            )
        self._fields = FieldParser(self.config, self.slots, unknown)
        # `Slots` computes both at each access. With 39 slots that takes 35 us of a request.
        self._sparse_count, self._weighted = len(self.slots.sparse), self.slots.weighted
        self._poolings = self.slots.poolings()
        self._positions = Positions(self.slots, self.config.model.sequences)
        # Dense fields that a request for vectors of users need not have: of the item's tower.
        item = getattr(model, "item", ()) if model.type is ModelType.DSSM else ()
        self._unread = {
            slot.column or slot.name: [0.0] * slot.dim
            for slot in self.slots.dense
            if slot.name in item and slot.read
        }
        self._users: UserScorer | None = None
        if self.config.model.reads_sequences:
            program = UserProgram(*frozen, limits.threads)
            self._users = UserScorer(
                self.config, self.slots, self._rows, program, limits.history_bytes, unknown
            )
        else:
            self._dense = DenseProgram(*frozen, limits.threads, self._rows.output_width)

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
        if self._positions.any:
            return self._dense_of(*_unpacked(parsed, self.slots), output=USER)
        return self._dense.run(len(instances), self._pull(parsed), parsed, output=USER)

    def _pull(self, parsed: Any) -> Callable[..., None]:
        pull: Callable[..., None] = self._rows.pull_parsed
        if self._poolings:
            pull = partial(pull, factors=core.factors_of_chunk(parsed, self._poolings))
        return pull

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
        if self._positions.any:
            return self.predict_feasigns(*_unpacked(parsed, self.slots))
        return self._dense.run(len(asked), self._pull(parsed), parsed)

    def predict_feasigns(
        self, feasigns: Any, offsets: Any, dense: Any = None, weights: Any = None
    ) -> np.ndarray:
        self._check_reads_instances()
        _check_weights(self._weighted, feasigns, weights)
        if len(offsets) <= 1:
            return np.zeros(0, np.float32)
        return self._dense_of(feasigns, offsets, dense, weights)

    def _dense_of(
        self, feasigns: Any, offsets: Any, dense: Any, weights: Any, output: int = 0
    ) -> np.ndarray:
        instances = (len(offsets) - 1) // self._sparse_count
        pull = self._rows.pull
        if self._poolings:
            # 0 is padding, which has no part in a mean.
            present: np.ndarray = (feasigns != 0).astype(np.float32)
            counted = present if weights is None else present * weights
            factors = core.factors_of_lists(offsets, self._poolings, counted)
            pull = partial(pull, factors=factors)
            if weights is not None:
                _check_other_weights(self.slots, offsets, counted, present)
        if self._positions.any:
            offsets, lengths = self._positions.part(offsets)
            dense = lengths if dense is None else np.concatenate([dense, lengths], axis=1)
        elif dense is None:
            dense = _NO_DENSE
        return self._dense.run(instances, pull, feasigns, offsets, dense, output=output)

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


def _check_weights(
    weighted: Sequence[str], feasigns: np.ndarray, weights: np.ndarray | None
) -> None:
    """Raises: ValueError unless there are weights exactly if a slot is weighted."""
    if weights is None:
        if weighted:
            raise ValueError(
                f"expected weights of the feasigns, because slots {', '.join(weighted)} are "
                "weighted: pass ones for weights of 1"
            )
        return
    if not weighted:
        raise ValueError("weights of ids are given, but no slot is weighted: leave them out")
    if weights.shape != feasigns.shape:
        raise ValueError(
            f"weights have shape {weights.shape}, expected that of the feasigns, {feasigns.shape}"
        )
    if not ((weights >= 0) & (weights <= MOST_WEIGHT)).all():  # NaN is neither
        raise ValueError("weights of feasigns: expected numbers in [0, 2^32]")


def _check_other_weights(
    slots: Slots, offsets: np.ndarray, weights: np.ndarray, expected: np.ndarray
) -> None:
    """Raises: ValueError if slots that are not weighted have weights other than expected."""
    sizes = np.diff(offsets)
    plain = np.resize([not slot.weighted for slot in slots.sparse], len(sizes))
    wrong = np.flatnonzero(np.repeat(plain, sizes) & (weights != expected))
    if len(wrong):
        at = int(wrong[0])
        slot = slots.sparse[(np.searchsorted(offsets, at, "right") - 1) % len(slots.sparse)]
        raise ValueError(
            f"weights of feasigns: expected 1 in slot {slot.name!r}, which is not weighted, found "
            f"{weights[at]:g} at index {at}"
        )


def _unpacked(
    parsed: Any, slots: Slots
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Feasigns, offsets, dense features and weights of parsed instances."""
    instances = core.Instances(len(slots.sparse), slots.dense_width)
    size = parsed.instances
    instances.append(parsed)
    instances.index(core.ThreadPool(1))
    feasigns, offsets = instances.pack_feasigns(0, size)
    rows = np.full(instances.unique_keys, -1, np.int32)
    dense = instances.pack_batch(0, size, rows, 0, slots.dense_width)["dense"]
    return feasigns, offsets, dense, instances.pack_weights(0, size) if slots.weighted else None
