"""What ranks exchange of rows on a device has the bits of what they exchange of the host's tier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cuda.hbm_cases import batch, filled, random_push, same_bits
from tests.cuda.hbm_library import RULES, Device, Error, Library, Push, Reference, config
from tests.cuda.ranks_library import (
    WIRES,
    Batch,
    HostRanks,
    Staging,
    gather,
    push_records,
    record_bytes,
    unpack,
)

WIRE = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES.keys())


@pytest.fixture(scope="module")
def host(folder: Path) -> HostRanks:
    return HostRanks(folder / "libpbx_reference.so")


def same_bytes(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    different = np.argwhere(found != expected)
    assert len(different) == 0, f"{len(different)} bytes differ, the first at {different[0]}"


def hard_rows(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
    """Of every size that float32 has, subnormals and what is not finite among them."""
    rows = rng.normal(size=(n, columns)) * 10.0 ** rng.integers(-44, 39, (n, columns))
    rows = rows.astype(np.float32)
    odd = rng.random((n, columns))
    rows[odd < 0.05] = 0.0
    for part, value in enumerate((np.nan, np.inf, -np.inf, -0.0, 65520.0, 1.0 + 2.0**-11)):
        rows[(odd > 0.96 + part / 200) & (odd < 0.963 + part / 200)] = value
    return rows


@WIRE
@pytest.mark.parametrize("dim", [1, 8, 13, 64, 253])
def test_gathered_rows_are_records_as_the_host_packs_them(
    library: Library, reference: Reference, host: HostRanks, wire: int, dim: int
) -> None:
    rng = np.random.default_rng(dim)
    case = filled(library, reference, config(dim), 300)
    ids = np.append(rng.integers(-1, 300, 777), [-1, 0, 299]).astype(np.int32)
    rows = hard_rows(rng, 300, 3 + dim)
    at = [1, 2, 6, *range(case.device.words - dim - 1, case.device.words - 1)]  # AdaGrad
    case.rows[:, at] = rows
    case.table.put_rows(case.rows)
    pulled = reference.pull(case.device.config, case.rows, ids)
    same_bytes(gather(case.table, wire, ids), host.pack(wire, pulled))
    assert np.array_equal(pulled[-1], rows[299], equal_nan=True)
    assert len(gather(case.table, wire, ids[:0])) == 0


@WIRE
@pytest.mark.parametrize("dim", [1, 8, 13, 64, 253])
def test_records_become_the_rows_that_the_host_makes_of_them(
    library: Library, host: HostRanks, wire: int, dim: int
) -> None:
    device = Device(library, config(dim))
    records = host.pack(wire, hard_rows(np.random.default_rng(dim), 500, 3 + dim))
    assert records.shape[1] == record_bytes(device, wire)
    expected = host.unpack(wire, records, 3 + dim)
    found = unpack(device, wire, records)
    assert np.isnan(expected).any()
    same_bits(found, expected)


@WIRE
@pytest.mark.parametrize("kind", RULES)
def test_gradients_of_three_ranks_are_applied_in_the_order_of_ranks(
    library: Library, reference: Reference, host: HostRanks, wire: int, kind: str
) -> None:
    rng, dim = np.random.default_rng(7), 8
    case = filled(library, reference, config(dim, kind), 200)
    of_ranks = [np.sort(rng.permutation(200)[:count]) for count in (120, 0, 150)]
    ids = np.concatenate(of_ranks).astype(np.int32)
    gradients = rng.normal(size=(len(ids), 3 + dim)).astype(np.float32)
    gradients[:, :2] = rng.integers(1, 9, (len(ids), 2))
    records = host.pack(wire, gradients)
    unpacked = host.unpack(wire, records, 3 + dim)
    plan = reference.plan(ids, np.arange(len(ids) + 1, dtype=np.int32))
    push = Push(unpacked, unpacked, 1, 3 + dim, day=9)
    reference.push(case.device.config, case.table.keys, case.rows, plan, push)
    push_records(case.table, plan, wire, records, push)
    same_bits(case.table.rows(), case.rows)
    assert case.table.changed().tolist() == np.unique(ids).tolist()


@WIRE
def test_a_batch_has_the_rows_that_it_was_filled_with(
    library: Library, reference: Reference, host: HostRanks, wire: int
) -> None:
    rng, dim, n = np.random.default_rng(3), 13, 400
    rows = rng.normal(size=(n, 3 + dim)).astype(np.float32)
    rows[:, :2] = rng.integers(0, 100, (n, 2))
    records = host.pack(wire, rows)
    expected = host.unpack(wire, records, 3 + dim).copy()
    made = Batch(Device(library, config(dim)))
    made.renew(np.sort(rng.integers(0, 1 << 64, n, dtype=np.uint64)), 1)
    ids, offsets = batch(rng, n, 50, 3)
    assert not made.pull(ids).any()
    order = rng.permutation(n)
    made.fill(wire, records[:100])
    made.fill(wire, records[100:250], first=100)
    late = order[order >= 250]
    made.fill(wire, records[late], late)
    same_bits(made.pull(np.arange(n)), expected)
    whole = filled(library, reference, config(dim), n)  # the same values as rows of a pass
    at = [1, 2, 6, *range(made.device.words - dim - 1, made.device.words - 1)]
    whole.rows[:, at] = expected
    of_host = reference.pull_pooled(whole.device.config, whole.rows, ids, offsets, 3, 0, True)
    same_bits(made.pull_pooled(ids, offsets, 3, 0, True), of_host)


def test_a_batch_is_renewed_with_other_keys_and_rows_of_zeros(
    library: Library, reference: Reference
) -> None:
    rng = np.random.default_rng(11)
    made = Batch(Device(library, config(8)))
    for stamp, n in enumerate((3000, 1, 0, 5000, 40), 1):
        feasigns = np.unique(rng.integers(1, 1 << 64, n, dtype=np.uint64))
        mixed = reference.mix(feasigns)
        order = np.argsort(mixed)
        made.renew(mixed[order], stamp)
        assert not made.pull(np.arange(len(feasigns))).any()
        assert made.find(feasigns[order]).tolist() == list(range(len(feasigns)))
        assert made.find(rng.integers(1, 1 << 64, 50, dtype=np.uint64)).tolist() == [-1] * 50
        assert made.report().absent == 50 * stamp
        made.fill(0, np.ones((len(feasigns), 11), np.float32))
        assert (made.pull(np.arange(len(feasigns))) == 1).all()
    assert made.report().out_of_range == 0


@pytest.mark.parametrize("dim", [1, 16, 253])
@pytest.mark.parametrize("use_cvm", [True, False])
def test_a_merge_adds_up_as_the_push_of_the_hosts_batch(
    library: Library, reference: Reference, host: HostRanks, dim: int, use_cvm: bool
) -> None:
    rng, n = np.random.default_rng(dim), 150
    made = Batch(Device(library, config(dim)))
    made.renew(np.arange(1, n + 1, dtype=np.uint64), 1)
    expected = np.zeros((n, 3 + dim), np.float32)
    for turn in range(2):  # of a program with two lookups: the second adds to the first
        ids, offsets = batch(rng, n, 200, 4)
        ids[::2] = 5  # which fills two whole chunks
        push = random_push(rng, dim, 800, 4, extra=5, scale=60.0)
        if not use_cvm:
            push = push._replace(
                grad=rng.normal(size=(200, 4 * (1 + dim) + 5)).astype(np.float32),
                stride=1 + dim,
                weights_at=0,
            )
        plan = reference.plan(ids, offsets)
        host.merge(dim, n, plan, push, expected)
        same_bits(made.merge(plan, push), expected)
        assert made.report().rows_pushed > turn * 50
    assert expected.any()


@pytest.mark.parametrize("clip", [False, True])
def test_sums_of_a_merge_that_are_not_finite_are_left_out_or_mended(
    library: Library, reference: Reference, host: HostRanks, clip: bool
) -> None:
    rng = np.random.default_rng(4)
    made = Batch(Device(library, config(8)))
    made.renew(np.arange(1, 21, dtype=np.uint64), 1)
    push = random_push(rng, 8, 20, 1, clip=clip, bound=2.0)
    push.grad[3, 5], push.grad[7, 2], push.grad[9, 10] = np.nan, np.inf, -np.inf
    push.show_click[11] = np.nan
    plan = reference.plan(np.arange(20, dtype=np.int32), np.arange(21, dtype=np.int32))
    expected = np.zeros((20, 11), np.float32)
    host.merge(8, 20, plan, push, expected)
    same_bits(made.merge(plan, push), expected)
    assert made.report().bad_rows == 4
    assert made.bad_by_slot() == {0: 4}
    assert expected[7].any() == clip


@WIRE
def test_staged_arrays_of_the_host_travel_as_those_of_the_device(
    library: Library, reference: Reference, host: HostRanks, wire: int
) -> None:
    rng, dim = np.random.default_rng(5), 16
    case = filled(library, reference, config(dim), 500)
    staging, made = Staging(case.device), Batch(case.device)
    for turn, count in enumerate((90, 400, 7), 1):
        ids = np.sort(rng.permutation(500)[:count]).astype(np.int32)
        records = staging.gather(case.table, wire, ids)
        same_bytes(records, gather(case.table, wire, ids))
        made.renew(case.table.keys[ids], turn)
        staging.fill(made, wire, records[: count // 2])
        at = np.arange(count // 2, count, dtype=np.int32)
        staging.fill(made, wire, records[count // 2 :], at)
        same_bits(made.pull(np.arange(count)), unpack(case.device, wire, records))
        plan = reference.plan(ids, np.arange(count + 1, dtype=np.int32))
        given = host.unpack(wire, records, 3 + dim)
        push = Push(given, given, 1, 3 + dim, day=turn)
        reference.push(case.device.config, case.table.keys, case.rows, plan, push)
        staging.push(case.table, plan, wire, records, push)
        same_bits(case.table.rows(), case.rows)
    staging.close()


def test_rows_tell_whether_they_have_an_embedx(library: Library, reference: Reference) -> None:
    rng = np.random.default_rng(6)
    case = filled(library, reference, config(4), 3000)
    have = rng.random(3000) < 0.5
    flags = case.rows.view(np.uint32)[:, 0]
    flags &= ~np.uint32(1 << 16)
    flags |= have.astype(np.uint32) << np.uint32(16)
    case.table.put_rows(case.rows)
    ids = rng.integers(-1, 3000, 5000).astype(np.int32)
    staging = Staging(case.device)
    found = staging.have_embedx(case.table, ids)
    assert np.array_equal(found, np.where(ids >= 0, have[ids], False))
    assert len(staging.have_embedx(case.table, ids[:0])) == 0
    assert case.table.report().out_of_range == 0
    assert staging.have_embedx(case.table, np.array([3000])) == [0]
    assert case.table.report().out_of_range == 1
    staging.close()


def test_missing_values_are_left_out_and_counted(library: Library, reference: Reference) -> None:
    case = filled(library, reference, config(8), 10)
    assert not gather(case.table, 0, np.array([10, -2]))[0].any()
    assert case.table.report().out_of_range == 2
    made = Batch(case.device)
    made.renew(case.table.keys, 3)
    made.fill(0, np.ones((2, 11), np.float32), np.array([10, -1]))
    made.fill(0, np.ones((2, 11), np.float32), first=9)
    assert made.report().out_of_range == 3
    assert made.pull(np.arange(10)).any(axis=1).tolist() == [False] * 9 + [True]
    push = random_push(np.random.default_rng(1), 8, 10, 1)
    ids, offsets = np.arange(10, dtype=np.int32), np.arange(11, dtype=np.int32)
    of_the_one_before = reference.plan(ids, offsets, stamp=2)
    assert not made.merge(of_the_one_before, push).any()
    assert made.report().out_of_range == 4


def test_a_batch_of_an_evaluation_misses_no_feasign_and_takes_no_gradient(
    library: Library, reference: Reference
) -> None:
    made = Batch(Device(library, config(8)))
    made.renew(np.array([5], np.uint64), 1, read_only=True)
    assert made.find(np.array([77], np.uint64)).tolist() == [-1]
    assert made.report().absent == 0
    plan = reference.plan(np.zeros(1, np.int32), np.arange(2, dtype=np.int32))
    with pytest.raises(Error, match="the batch is read-only"):
        made.merge(plan, random_push(np.random.default_rng(1), 8, 1, 1))
    made.renew(np.array([5], np.uint64), 2)
    made.find(np.array([77], np.uint64))
    assert (made.report().absent, made.report().an_absent) == (1, 77)


def test_a_wire_that_is_none_is_named(library: Library, reference: Reference) -> None:
    case = filled(library, reference, config(8), 10)
    assert record_bytes(case.device, 4) == 0
    with pytest.raises(Error, match="wire of records is 4, expected 0 to 3"):
        case.table.library.call("gather", case.table.handle, 4, None, 0, None, None)
    staging = Staging(case.device)
    with pytest.raises(Error, match="wire of records is -1"):
        staging.library.call("stage_fill", staging.handle, case.table.handle, -1, None, 0, None, 0)
    staging.close()
