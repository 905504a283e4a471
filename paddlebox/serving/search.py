"""Search: the best items of a folder of vectors for the users of requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlebox.errors import PaddleBoxError, StoreError
from paddlebox.serving.file import Generation
from paddlebox.serving.vectors import ItemVectors, VectorFolder

if TYPE_CHECKING:
    from paddlebox.serving.generation import OpenGeneration
    from paddlebox.serving.predictor import Predictor

log = logging.getLogger("paddlebox")

_OPEN = 2  # indexes: requests may still finish on the generation before


class Search:
    """Answers requests with a predictor and the vectors of the dense parameters that it has. Thread
    safe. The thread that follows the export file opens an index before it switches to a generation,
    so that no request waits for it. threads: of a search. Raises: as `VectorFolder.about` and
    `ItemVectors`, for the current generation; ConfigError if the model has no towers."""

    def __init__(self, predictor: Predictor, path: Path, threads: int = 1) -> None:
        self._predictor, self._folder, self._threads = predictor, VectorFolder(path), threads
        self._opened: tuple[ItemVectors, ...] = ()  # the newest first; replaced as a whole
        self._trouble = ""  # why the last look found no other index; "": it found one
        predictor.user_vectors([])
        self._open(predictor.generation)
        predictor.before_switch = self._prepare

    def answer(
        self, instances: Sequence[Mapping[str, Any]], k: int
    ) -> tuple[list[list[tuple[Any, float]]], OpenGeneration]:
        """The best k items of each user with their products, best first, and the generation.
        instances: as for `Predictor.user_vectors`. Raises: as that; StoreError if there are no
        vectors for the generation; CorruptionError."""
        vectors, generation = self._predictor.user_vectors(instances)
        record, name = generation.record, generation.config.name
        items = next((one for one in self._opened if one.about.fits(record)), None)
        if items is None:
            raise StoreError(self._trouble or f"no vectors of version {record.version} are open")
        if not len(vectors):
            return [], generation
        if (vectors.shape[1], name) != (items.about.width, items.about.model):
            raise StoreError(
                f"version {record.version}: expected vectors of {vectors.shape[1]} floats of model "
                f"{name!r}, found those of {items.about.width} floats of model "
                f"{items.about.model!r}: write them from the run that was exported"
            )
        return items.search(vectors, k), generation

    def _open(self, record: Generation) -> None:
        """Opens the index for a generation, unless the newest one is open."""
        about = self._folder.about(record)
        if not self._opened or self._opened[0].about != about:
            self._opened = (ItemVectors(about, self._threads), *self._opened)[:_OPEN]

    def _prepare(self, record: Generation) -> None:
        """Called at each look for a new version: vectors may also come later than the version."""
        try:
            self._open(record)
            self._trouble = ""
        except PaddleBoxError as error:
            if str(error) != self._trouble:  # each reason once
                log.error("%s: /search: %s", self._folder.path, error)
            self._trouble = str(error)
