"""Tables and batches of the tests, and what it means that two results are the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.cuda.hbm_library import Config, Device, Library, Push, Reference, Table


class Case(NamedTuple):
    device: Device
    table: Table
    rows: np.ndarray  # (n, W) on the host, as the table has them
    feasigns: np.ndarray  # (n) in the order of the keys


def feasigns_of(n: int, rng: np.random.Generator) -> np.ndarray:
    found = np.unique(rng.integers(0, 1 << 64, n + n // 8 + 8, dtype=np.uint64))
    found[:2] = 0, (1 << 64) - 1  # no feasign is special
    return rng.permutation(np.unique(found))[:n]


def filled(library: Library, reference: Reference, of: Config, n: int, seed: int = 1) -> Case:
    """A table with rows that have been seen before, some with embedx, some without."""
    rng = np.random.default_rng(seed)
    feasigns = feasigns_of(n, rng)
    mixed = reference.mix(feasigns)
    order = np.argsort(mixed)
    device = Device(library, of)
    table = Table(device, mixed[order])
    slots = rng.integers(0, 9, n).astype(np.uint16)
    rows = reference.create(of, table.keys, slots, device.words)
    # Two pushes of everything make states and embedx of some.
    for day in (1, 2):
        ids = rng.permutation(n)[: max(1, 3 * n // 4)].astype(np.int32)
        push = random_push(rng, of.embedx_dim, len(ids), 1, day=day)
        plan = reference.plan(ids, np.arange(len(ids) + 1, dtype=np.int32))
        reference.push(of, table.keys, rows, plan, push)
    flags = rows[:, 0].view(np.uint32)
    flags &= ~np.uint32(2 << 16)  # as staged: nothing is marked as changed
    table.put_rows(rows)
    return Case(device, table, rows, feasigns[order])


def random_push(
    rng: np.random.Generator, dim: int, segments: int, slots: int, **changed: Any
) -> Push:
    stride, instances = 3 + dim, segments // slots
    extra = int(changed.get("extra", 0))
    return Push(
        rng.normal(size=(instances, slots * stride + extra)).astype(np.float32),
        np.stack([np.ones(instances), rng.random(instances) < 0.4], 1).astype(np.float32),
        slots,
        stride,
        **changed,
    )


def batch(
    rng: np.random.Generator, n: int, instances: int, slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """ids, some of them -1 and some again and again; offsets with empty segments."""
    lengths = rng.integers(0, 4, instances * slots)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    ids = (rng.zipf(1.3, int(offsets[-1])) % (n + 1)).astype(np.int32) - 1
    return ids, offsets


def frequent(rng: np.random.Generator, most: int) -> np.ndarray:
    """Ids in disorder: rows 0, 7, ..., 42 occur about as often as whole chunks of 256 have
    occurrences, the last one `most` times; rows between them, and after, once or twice."""
    counts = [1, 255, 256, 257, 512, 768, most]
    others = rng.integers(0, 200, 300)
    ids = np.concatenate([np.repeat(7 * np.arange(7), counts), others[others % 7 != 0]])
    return rng.permutation(ids).astype(np.int32)


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    different = np.nonzero(found.view(np.uint32) != expected.view(np.uint32))
    assert len(different[0]) == 0, (
        f"{len(different[0])} differ; at {[int(i[0]) for i in different]}: "
        f"{found[different][0]!r}, expected {expected[different][0]!r}"
    )
