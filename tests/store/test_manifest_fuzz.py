"""A second of the manifest's fuzzing (tests/fuzz/fuzz_manifest.py)."""

from __future__ import annotations

from tests.fuzz.fuzz_manifest import fuzz


def test_any_bytes_decode_or_are_refused() -> None:
    counts = fuzz(1.0, seed=3)
    assert all(counts.values()), counts
