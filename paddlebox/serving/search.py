"""Search: the best items of a folder of vectors for the users of requests."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlebox.errors import StoreError
from paddlebox.serving.vectors import ItemVectors, VectorFolder

if TYPE_CHECKING:
    from paddlebox.serving.generation import OpenGeneration
    from paddlebox.serving.predictor import Predictor

_OPEN = 2  # versions: requests may still finish on the one before


class Search:
    """Answers requests with a predictor and the vectors of the version that it has. Thread safe.
    threads: of a search. Raises: as `VectorFolder.open`, for the current version."""

    def __init__(self, predictor: Predictor, path: Path, threads: int = 1) -> None:
        self._predictor, self._folder, self._threads = predictor, VectorFolder(path), threads
        self._open: dict[int, ItemVectors] = {}
        self._lock = threading.Lock()
        self._of(predictor.version)

    def answer(
        self, instances: Sequence[Mapping[str, Any]], k: int
    ) -> tuple[list[list[tuple[Any, float]]], OpenGeneration]:
        """The best k items of each user with their products, best first, and the generation.
        instances: as for `Predictor.user_vectors`. Raises: as that, and `VectorFolder.open`."""
        vectors, generation = self._predictor.user_vectors(instances)
        items = self._of(generation.record.version)
        if not len(vectors):
            return [], generation
        if vectors.shape[1] != items.width:
            raise StoreError(
                f"version {items.version}: the model has vectors of {vectors.shape[1]} floats, and "
                f"the index of {items.width}: they are of different runs; write the index from the "
                "run that was exported"
            )
        return items.search(vectors, k), generation

    def _of(self, version: int) -> ItemVectors:
        with self._lock:
            if version not in self._open:
                opened = self._folder.open(version, self._threads)
                kept = sorted(self._open, reverse=True)[: _OPEN - 1]
                self._open = {number: self._open[number] for number in kept} | {version: opened}
            return self._open[version]
