"""Predictor: probabilities from an export file. It follows new versions of the file."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from paddlebox.closing import Closing
from paddlebox.config import Config, Slots
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import PaddleBoxError, StoreError
from paddlebox.serving.counters import IgnoredFields
from paddlebox.serving.file import ExportFile, Generation
from paddlebox.serving.generation import Asked, Limits, OpenGeneration
from paddlebox.serving.users import UserRequest

log = logging.getLogger(__name__)

_MOST_WAIT_S = 30.0  # between two looks for a new version, after failures


class Predictor(Closing):
    """Predicts probabilities from an export file. It is thread-safe. After a fork, open one in each
    process; the processes share the pages of the file.

    Letters: B = instances, S = sparse slots, T = tasks, W = dense width, nnz = feasigns.

    Args:
        path: the export file.
        threads: of the dense part of one prediction.
        pin: the version to use; None: the current version of the file, also after it changes.
        follow_s: seconds between two checks of the file; 0: only `refresh` checks it.
        resident_bytes: the most bytes of a version's blocks to copy into huge pages of this
            process at their first use, which saves a TLB miss per row. Other blocks are read from
            the map of the file. The models of an ensemble share these bytes and the next.
        history_bytes: the most bytes of histories of users to keep. A new version has none.
        unknown_fields: whether a field that no slot reads is an error, or is ignored, logged once
            and counted in `ignored_fields`, a dict from name to count (counters.IgnoredFields).

    Raises: StoreError, CorruptionError; ValueError for an argument out of range.
    """

    def __init__(
        self,
        path: AnyPath,
        threads: int = 1,
        pin: int | None = None,
        *,
        follow_s: float = 1.0,
        resident_bytes: int = 256 << 20,
        history_bytes: int = 256 << 20,
        unknown_fields: Literal["error", "ignore"] = "error",
    ) -> None:
        if unknown_fields not in ("error", "ignore"):
            raise ValueError(f"unknown_fields: expected error or ignore, found {unknown_fields!r}")
        self.unknown_fields, ignored = unknown_fields, IgnoredFields()
        self.ignored_fields = ignored.counts
        self._unknown = ignored.add if unknown_fields == "ignore" else None
        self._limits = Limits(threads, resident_bytes, history_bytes)
        self.path, self._pin = as_path(path, "path"), pin
        self._lock = threading.Lock()
        self._switching = threading.Lock()
        self._stop = threading.Event()
        self._now: OpenGeneration | None = None
        #: Called with the record of the current version at each look, before a switch to it.
        self.before_switch: Callable[[Generation], None] | None = None
        self.trouble = ""  # why the last look for a new version failed; "": it did not
        self._open = 0  # generations with an open read transaction; the file stays open for them
        self._file = ExportFile(path)
        try:
            self.refresh()
        except BaseException:
            self._file.close()
            raise
        if follow_s > 0 and pin is None:
            threading.Thread(
                target=self._follow, args=(follow_s,), name="paddlebox-follow", daemon=True
            ).start()

    # ---- prediction

    def predict(self, instances: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Predict from raw fields.

        Args:
            instances: a dict for each instance: the name of a column or slot -> a string, a number
                or a list of them, as in the training data. A field that is missing or None is an
                empty cell. The label is not needed.

        Returns: probabilities, (B) float32; for several tasks (B, T), in the order of `tasks`; (0)
            without instances.

        Raises: DataError that names the instance and the field; ConfigError if the model reads
            sequences (`reads_users`); CorruptionError.
        """
        return self.answer(instances)[0]

    def answer(self, asked: Asked) -> tuple[np.ndarray, OpenGeneration]:
        """The result of `predict` or `predict_user`, and the generation that predicted. Use only
        attributes of the generation: it may be closed at any time."""
        with self._using() as generation:
            return generation.predict(asked), generation

    def user_vectors(
        self, instances: Sequence[Mapping[str, Any]]
    ) -> tuple[np.ndarray, OpenGeneration]:
        """The vectors of users, with a model of two towers. D = output_dim.

        Args:
            instances: as for `predict`. The fields of the item's tower are not needed.

        Returns: (B, D) float32, and the generation, as for `answer`.

        Raises: ConfigError if the model has no towers; DataError; CorruptionError.
        """
        with self._using() as generation:
            return generation.user_vectors(instances), generation

    def predict_user(
        self,
        history: Sequence[Mapping[str, Any]],
        candidates: Sequence[Mapping[str, Any]],
        *,
        user: str = "",
        after: int = 0,
    ) -> np.ndarray:
        """Predict candidates, each after the same history, with a model that reads sequences.

        Args:
            history: events of the user, in the order of time: the fields of an instance as for
                `predict`, the label, and the time in the field `tags.time`.
            candidates: G instances with a time, without labels. They do not see each other.
            user: if given, the history is kept under this name for later calls.
            after: the number of events that earlier calls for `user` have given, and that `history`
                follows; above 0 it needs `user`. Events after these are forgotten.

        Returns: probabilities of the candidates, (G) float32.

        Raises: HistoryMissing if the first `after` events are not kept; DataError that names the
            event or candidate and the field; ConfigError if the model reads no sequences;
            ValueError if `after` is negative; CorruptionError.
        """
        return self.answer(UserRequest(history, candidates, user, after))[0]

    def predict_feasigns(
        self,
        feasigns: np.ndarray,
        offsets: np.ndarray,
        dense: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """Predict from feasigns and dense features, as the feeder computes them from raw fields.

        Args:
            feasigns: (nnz) uint64, or int64 with the same bits. A feasign without a row, such as 0,
                reads as zeros.
            offsets: (B * S + 1) int32. Slot s of instance b has
                feasigns[offsets[b * S + s] : offsets[b * S + s + 1]].
            dense: (B, W) float32, after the transforms of slots.yaml; None if W is 0.
            weights: (nnz) float32, if a slot is weighted: in [0, 2^32] for feasigns of weighted
                slots, else 1.

        Returns: probabilities, (B) float32; for several tasks (B, T).

        Raises: ValueError for another shape, or another dtype of feasigns (the other arrays are
            converted); ConfigError if the model reads sequences; CorruptionError.
        """
        feasigns = np.ascontiguousarray(feasigns)
        if feasigns.dtype == np.int64:
            feasigns = feasigns.view(np.uint64)
        elif feasigns.dtype != np.uint64:
            raise ValueError(f"feasigns have dtype {feasigns.dtype}, expected uint64 or int64")
        offsets = np.ascontiguousarray(offsets, np.int32)
        if dense is not None:
            dense = np.ascontiguousarray(dense, np.float32)
        if weights is not None:
            weights = np.ascontiguousarray(weights, np.float32)
        with self._using() as generation:
            return generation.predict_feasigns(feasigns, offsets, dense, weights)

    def warm(self) -> None:
        """Read and test every block now, so that no request has to. Raises: CorruptionError."""
        with self._using() as generation:
            generation.test_all()

    # ---- versions

    def check(self) -> None:
        """Raises: CorruptionError if the open file was cut short; StoreError if another file has
        its name now."""
        with self._using():
            self._file.check_whole()

    @property
    def generation(self) -> Generation:
        """The record of the current generation: its version, day, pass and more."""
        with self._using() as generation:
            return generation.record

    @property
    def version(self) -> int:
        """The version that predicts now."""
        return self.generation.version

    @property
    def tasks(self) -> tuple[str, ...]:
        """(T) names of the labels, the columns of predictions."""
        return self.model[1].tasks

    @property
    def model(self) -> tuple[Config, Slots]:
        """The config and the slots of the model."""
        with self._using() as generation:
            return generation.config, generation.slots

    @property
    def reads_users(self) -> bool:
        """Whether the model reads sequences: `predict_user` then predicts, and not `predict`."""
        return bool(self.model[0].model.reads_sequences)

    def refresh(self) -> bool:
        """Switch to the current version of the file, if it has changed. Requests in flight keep
        theirs. Returns whether it switched. Raises: CorruptionError, StoreError; the predictor
        then keeps its version."""
        with self._switching:
            txn = self._file.read()
            try:
                record = self._wanted(txn)
                if self.before_switch is not None:
                    self.before_switch(record)
                before = self._now
                if before is not None and before.record == record:
                    txn.abort()
                    return False
                known = before is not None and self._file.has(txn, before.record)
                old = before if known else None
                opened = OpenGeneration(self._file, txn, record, self._limits, old, self._unknown)
            except BaseException:
                txn.abort()
                raise
            with self._lock:
                if self._stop.is_set():
                    before = opened  # the predictor was closed in the meantime
                else:
                    self._now = opened
                self._open += 1
                idle = before is not None and before.users == 0
            if before is not None and idle:
                self._retire(before)
            return True

    def _wanted(self, txn: Any) -> Generation:
        if self._pin is None:
            current = self._file.head(txn).current
            if current == 0:
                raise StoreError(f"{self.path}: no version has been exported yet")
            return self._file.generation(txn, current)
        return self._file.of_version(txn, self._pin)

    def _follow(self, seconds: float) -> None:
        wait = seconds
        while not self._stop.wait(wait):
            try:
                if self.refresh():
                    log.info("%s: version %d", self.path, self.version)
                if self.trouble:
                    log.info("%s: can be followed again", self.path)
                self.trouble, wait = "", seconds
            except Exception as error:  # whatever it is, the next look may succeed
                if self._stop.is_set():
                    return
                trouble = str(error) or type(error).__name__
                if trouble != self.trouble:  # each reason once
                    trace = not isinstance(error, PaddleBoxError)
                    text = "%s: still predicting with the old version: %s"
                    log.error(text, self.path, trouble, exc_info=trace)
                self.trouble, wait = trouble, min(2 * wait, max(seconds, _MOST_WAIT_S))

    @contextlib.contextmanager
    def _using(self) -> Iterator[OpenGeneration]:
        """The current generation. It stays open until the end of the block."""
        self._file.check_process()
        with self._lock:
            generation = self._now
            if generation is None:
                raise StoreError(f"{self.path}: the predictor is closed")
            generation.users += 1
        try:
            yield generation
            self._file.check_map()
        finally:
            with self._lock:
                generation.users -= 1
                last = generation.users == 0 and generation is not self._now
            if last:
                self._retire(generation)

    def _retire(self, generation: OpenGeneration) -> None:
        generation.close()
        with self._lock:
            self._open -= 1
            unused = self._open == 0
        if unused:
            self._file.close()

    def close(self) -> None:
        """Close the file after the last request in flight. Further calls have no effect."""
        self._stop.set()
        with self._lock:
            generation, self._now = self._now, None
            idle = generation is not None and generation.users == 0
        if generation is not None and idle:
            self._retire(generation)
