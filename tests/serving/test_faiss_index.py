"""The index of faiss finds nearly all of the nearest vectors, and other bytes are an error."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.errors import ConfigError, CorruptionError
from paddlebox.serving.vectors import ExactIndex, check_index_kind

COUNT, WIDTH, K = 12_000, 16, 20

needs_faiss = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None, reason="faiss-cpu is not installed"
)


def vectors_around_centres(count: int) -> np.ndarray:
    random = np.random.default_rng(1)
    centres = random.normal(size=(60, WIDTH))
    made = centres[random.integers(len(centres), size=count)]
    made += 0.3 * random.normal(size=made.shape)
    found: np.ndarray = made / np.linalg.norm(made, axis=1, keepdims=True)
    return found.astype(np.float32)


def exact_of(path: Path, vectors: np.ndarray) -> ExactIndex:
    writer = core.VectorIndexWriter(str(path), vectors.shape[1], 1)
    writer.append(vectors)
    writer.finish()
    return ExactIndex(path, threads=2)


def test_the_exact_index_finds_the_largest_products(tmp_path: Path) -> None:
    vectors = vectors_around_centres(3000)
    numbers, products = exact_of(tmp_path / "index", vectors).search(vectors[:50], K)
    assert (numbers[:, 0] == np.arange(50)).all()  # a vector is nearest to itself
    expected = -np.sort(-(vectors[:50] @ vectors.T), axis=1)[:, :K]
    np.testing.assert_allclose(products, expected, atol=0.01)  # bfloat16


@needs_faiss
@pytest.mark.parametrize("count", [100, COUNT])  # of one list, and of many
def test_faiss_finds_nearly_all_of_the_nearest(tmp_path: Path, count: int) -> None:
    from paddlebox.serving.faiss_index import FaissIndex, build

    vectors = vectors_around_centres(count)
    exact = exact_of(tmp_path / "index", vectors)
    build(vectors, exact, tmp_path / "faiss")
    index = FaissIndex(tmp_path / "faiss", threads=2)
    assert (index.rows, index.width) == (count, WIDTH)
    queries = vectors[:80] + 0.01
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, :K]
    found, products = index.search(queries, K)
    both = zip(expected, found, strict=True)
    assert np.mean([len(np.intersect1d(a, b)) for a, b in both]) / K > 0.985
    np.testing.assert_allclose(products, (queries[:, None] * vectors[found]).sum(2), atol=1e-5)


@needs_faiss
def test_other_bytes_are_no_index_of_faiss(tmp_path: Path) -> None:
    from paddlebox.serving.faiss_index import FaissIndex, build

    vectors = vectors_around_centres(100)
    build(vectors, exact_of(tmp_path / "index", vectors), tmp_path / "faiss")
    whole = (tmp_path / "faiss").read_bytes()
    for content in (b"", b"other bytes", whole[: len(whole) // 2]):
        (tmp_path / "faiss").write_bytes(content)
        with pytest.raises(CorruptionError, match="faiss: expected an index of faiss"):
            FaissIndex(tmp_path / "faiss")


def test_an_index_that_cannot_be_made_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="index: expected exact or faiss, found 'flat'"):
        check_index_kind("flat")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"expected the package faiss-cpu, .*paddlebox\[faiss\]"):
        check_index_kind("faiss")
