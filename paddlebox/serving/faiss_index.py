"""An approximate index of faiss, the extra `[faiss]`: inverted lists around centres (IVF).

faiss gives each vector to the nearest of about 4 sqrt(N) centres, and a search compares a query
with the vectors of the nearest centres, the *probes*. Their number is chosen when the index is
built: the least power of two that finds _RECALL of the nearest vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox.errors import CorruptionError
from paddlebox.store.files import write_durably

if TYPE_CHECKING:
    from paddlebox.serving.vectors import ExactIndex

_RECALL, _K, _QUERIES = 0.995, 20, 256
_FEW = 10_000  # vectors for which one list is as fast
_LEAST, _TRAINED = 40, 64  # vectors of a centre that its place is computed from


def build(vectors: np.ndarray, exact: ExactIndex, path: Path) -> None:
    """Write an index of vectors (N, D) float32. exact: an index of the same vectors. Raises:
    StoreError, OutOfSpaceError."""
    import faiss

    count, width = vectors.shape
    centres = 1 if count < _FEW else int(min(4 * count**0.5, count / _LEAST))
    flat = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(flat, width, centres, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.max_points_per_centroid = 1, _TRAINED
    index.train(vectors)
    index.add(vectors)
    index.nprobe = _probes(index, exact, vectors, centres)
    write_durably(str(path), faiss.serialize_index(index).tobytes())


def _probes(index: Any, exact: ExactIndex, vectors: np.ndarray, centres: int) -> int:
    random = np.random.default_rng(1)
    queries = vectors[random.choice(len(vectors), min(_QUERIES, len(vectors)), replace=False)]
    k = min(_K, len(vectors))
    # The exact index rounds to bfloat16: the nearest k are among the 4 k that it finds.
    candidates, _ = exact.search(queries, min(4 * k, len(vectors)))
    products = np.einsum("qkd,qd->qk", vectors[candidates], queries)
    expected = np.take_along_axis(candidates, np.argsort(-products, axis=1)[:, :k], axis=1)
    probes = 1
    while probes < centres:
        index.nprobe = probes
        _, found = index.search(queries, k)
        both = zip(expected, found, strict=True)
        recall = np.mean([len(np.intersect1d(of_all, of_some)) / k for of_all, of_some in both])
        if recall >= _RECALL:
            break
        probes = min(2 * probes, centres)
    return probes


class FaissIndex:
    """An index that `build` has written. Raises: CorruptionError."""

    _index: Any  # faiss.IndexIVFFlat

    def __init__(self, path: Path, threads: int = 1) -> None:
        import faiss

        try:
            self._index = faiss.deserialize_index(np.fromfile(path, np.uint8))
        except (OSError, RuntimeError, AssertionError) as error:
            raise CorruptionError(
                f"{path}: expected an index of faiss, found other bytes: {error}: write it again "
                "with `paddlebox vectors`"
            ) from None
        faiss.omp_set_num_threads(threads)
        self.rows, self.width = int(self._index.ntotal), int(self._index.d)

    @property
    def probes(self) -> int:
        return int(self._index.nprobe)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        products, numbers = self._index.search(np.ascontiguousarray(queries, np.float32), k)
        return numbers, products
