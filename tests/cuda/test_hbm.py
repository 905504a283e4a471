"""The HBM tier of ops/cuda gives the bits of the host's tier."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int32, c_uint64, c_void_p, memmove, memset

import numpy as np
import pytest

from tests.cuda.hbm_cases import batch, feasigns_of, filled, frequent, random_push, same_bits
from tests.cuda.hbm_library import (
    RULES,
    Device,
    Error,
    Library,
    OnDevice,
    Push,
    Reference,
    Table,
    config,
    pointer,
    rule,
)

SLOT_OF_RATES = 3


@pytest.mark.parametrize("n", [0, 1, 2, 63, 1000, 40_000])
def test_every_feasign_of_the_table_is_found_and_no_other(
    library: Library, reference: Reference, n: int
) -> None:
    rng = np.random.default_rng(n)
    feasigns = feasigns_of(n, rng)
    mixed = reference.mix(feasigns)
    order = np.argsort(mixed)
    table = Table(Device(library, config()), mixed[order])
    asked = rng.permutation(
        np.concatenate([feasigns, rng.integers(0, 1 << 64, 500, dtype=np.uint64)])
    )
    place = {int(f): i for i, f in enumerate(feasigns[order])}
    expected = [place.get(int(f), -1) for f in asked]
    assert table.find(asked).tolist() == expected
    assert table.sizes().rows == n


def test_keys_that_share_their_high_bits_are_found_too(library: Library) -> None:
    """All in one bucket of the index: as slow as can be, and right."""
    keys = np.arange(5000, dtype=np.uint64) + np.uint64(7 << 40)
    table = Table(Device(library, config()), keys)
    unmixed = np.array([_unmix(int(key)) for key in keys[::50]], np.uint64)
    assert table.find(unmixed).tolist() == list(range(0, 5000, 50))


def _unmix(x: int) -> int:
    mask = (1 << 64) - 1
    x ^= (x >> 31) ^ (x >> 62)
    x = x * 0x319642B2D24D8EC3 & mask
    x ^= (x >> 27) ^ (x >> 54)
    x = x * 0x96DE1B173F119089 & mask
    return x ^ (x >> 30) ^ (x >> 60)


@pytest.mark.usefixtures("late")
def test_rows_come_back_as_they_were_put(library: Library, reference: Reference) -> None:
    case = filled(library, reference, config(13), 3000)
    rng = np.random.default_rng(2)
    ids = rng.permutation(3000)[:777].astype(np.int32)
    # In another stream: put_rows has waited.
    same_bits(case.table.pull(ids), reference.pull(case.device.config, case.rows, ids))
    same_bits(case.table.rows(), case.rows)
    found = case.table.rows(ids)
    same_bits(found[ids], case.rows[ids])
    assert np.isnan(np.delete(found, ids, axis=0)).all()
    changed = rng.normal(size=case.rows.shape).astype(np.float32)
    case.table.put_rows(changed, ids)
    case.rows[ids] = changed[ids]
    same_bits(case.table.rows(), case.rows)
    last = ids[ids >= 2000]
    same_bits(case.table.rows(last, first=2000)[last - 2000], case.rows[last])
    case.table.put_rows(changed[2000:], first=2000)
    same_bits(case.table.rows(first=2000), changed[2000:])


@pytest.mark.usefixtures("late")
def test_more_rows_than_a_buffer_travel_in_turns(library: Library) -> None:
    """16 MiB a buffer; rows of 1 KiB."""
    device = Device(library, config(253))
    keys = np.arange(1, 40_001, dtype=np.uint64) * np.uint64(1 << 40)
    table = Table(device, keys)
    rows = np.arange(40_000 * device.words, dtype=np.float32).reshape(40_000, device.words)
    table.put_rows(rows)
    same_bits(table.rows(), rows)
    ids = np.arange(39_999, -1, -1, dtype=np.int32)
    same_bits(table.rows(ids), rows)
    table.put_rows(rows[::-1].copy(), ids)
    same_bits(table.rows(), rows[::-1].copy())


@pytest.mark.parametrize("kind", RULES)
def test_new_rows_are_those_of_the_host(library: Library, reference: Reference, kind: str) -> None:
    of = config(5, kind)
    device, keys = Device(library, of), np.arange(1, 301, dtype=np.uint64) << np.uint64(50)
    table = Table(device, keys)
    ids, slots = np.arange(300, dtype=np.int32), np.arange(300, dtype=np.uint16) * np.uint16(200)
    table.create_rows(ids, slots)
    same_bits(table.rows(), reference.create(of, keys, slots, device.words))


@pytest.mark.parametrize("dim", [1, 4, 8, 16, 17, 32, 64, 128, 253])
def test_a_pull_has_the_bits_of_the_hosts(library: Library, reference: Reference, dim: int) -> None:
    case = filled(library, reference, config(dim), 500, seed=dim)
    ids = np.random.default_rng(dim).integers(-1, 500, 1000).astype(np.int32)
    same_bits(case.table.pull(ids), reference.pull(case.device.config, case.rows, ids))
    assert case.table.pull(ids[:0]).shape == (0, 3 + dim)


@pytest.mark.parametrize("use_cvm", [True, False])
@pytest.mark.parametrize("dim", [1, 8, 16, 20, 64, 128])
def test_a_pooled_pull_has_the_bits_of_the_hosts(
    library: Library, reference: Reference, dim: int, use_cvm: bool
) -> None:
    rng = np.random.default_rng(dim)
    case = filled(library, reference, config(dim), 700, seed=dim)
    for instances, slots, extra in ((1, 1, 0), (40, 7, 0), (129, 3, 5)):
        ids, offsets = batch(rng, 700, instances, slots)
        arguments = (ids, offsets, slots, extra, use_cvm)
        expected = reference.pull_pooled(case.device.config, case.rows, *arguments)
        same_bits(case.table.pull_pooled(*arguments), expected)


@pytest.mark.parametrize("case", range(12))
def test_a_plan_is_that_of_the_host(library: Library, reference: Reference, case: int) -> None:
    rng = np.random.default_rng(case)
    ids, offsets = batch(rng, 50 + 200 * case, 1 + 30 * case, 1 + case % 5)
    if case == 0:
        ids[:] = -1
    found = Device(library, config()).plan(ids, offsets, stamp=9).get()
    expected = reference.plan(ids, offsets, stamp=9)
    assert found[: len(expected)].tolist() == expected.tolist()


def test_the_plan_of_a_batch_without_ids_is_empty(library: Library, reference: Reference) -> None:
    ids, offsets = np.empty(0, np.int32), np.zeros(5, np.int32)
    found = Device(library, config()).plan(ids, offsets, stamp=3).get()
    assert found[:4].tolist() == reference.plan(ids, offsets, stamp=3).tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize("kind", [*RULES, "adagrad and adam"])
def test_a_push_has_the_bits_of_the_hosts(
    library: Library, reference: Reference, kind: str
) -> None:
    """100 random cases a rule, each on the rows that the one before left."""
    of_embed, of_embedx = (kind, kind) if kind in RULES else kind.split(" and ")
    rng = np.random.default_rng(len(kind))
    for round_number in range(10):
        dim = int(rng.choice([1, 3, 8, 16, 31, 64]))
        rates = np.ones(65536, np.float32)
        rates[SLOT_OF_RATES] = 0.25
        of = config(
            dim,
            of_embed,
            embed=rule(of_embed, l1=0.01, l2=0.1),
            embedx=rule(of_embedx, min_bound=-0.5, max_bound=0.5, l2=0.01),
            embedx_threshold=float(rng.choice([0.0, 1.5, 4.0])),
            show_scale=int(rng.integers(2)),
            slot_rates=rates.ctypes.data if round_number % 2 else None,
        )
        n = int(rng.integers(1, 400))
        case = filled(library, reference, of, n, seed=round_number)
        expected = case.rows.copy()
        for day in range(10):
            slots, extra = int(rng.integers(1, 5)), int(rng.integers(0, 3))
            instances = int(rng.integers(1, 60))
            ids, offsets = batch(rng, n, instances, slots)
            push = random_push(
                rng, dim, instances * slots, slots, extra=extra, scale=float(instances), day=day
            )
            plan = reference.plan(ids, offsets)
            reference.push(of, case.table.keys, expected, plan, push)
            if day % 2:
                on_device, size = case.device.plan(ids, offsets), 4 + 3 * len(ids)
            else:
                on_device, size = case.device.put(plan), len(plan)
            assert case.table.push(on_device, size, push) == 0
            same_bits(case.table.rows(), expected)
        marked = np.nonzero(expected[:, 0].view(np.uint32) >> 16 & 2)[0]
        assert case.table.changed().tolist() == marked.tolist()
        case.table.drop()
        case.device.close()


@pytest.mark.parametrize("dim", [8, 16, 32, 64, 100, 253])
def test_frequent_rows_are_summed_in_the_order_of_the_host(
    library: Library, reference: Reference, dim: int
) -> None:
    rng = np.random.default_rng(3)
    case = filled(library, reference, config(dim), 200)
    ids = frequent(rng, most=255 * 256 + 17 if dim == 8 else 5_000)
    offsets = np.arange(len(ids) + 1, dtype=np.int32)
    before = case.table.sizes().table_bytes
    for fed in (True, False):
        push = random_push(rng, dim, len(ids), 1, scale=10_000.0)
        plan = reference.plan(ids, offsets)
        reference.push(case.device.config, case.table.keys, case.rows, plan, push)
        on_device = case.device.put(plan) if fed else case.device.plan(ids, offsets)
        size = len(plan) if fed else 4 + 3 * len(ids)
        assert case.table.push(on_device, size, push) == 0
        same_bits(case.table.rows(), case.rows)
        chunks = -(-(size - 4) // 256)  # of the most occurrences that a plan of this size can have
        assert case.table.sizes().table_bytes >= before + chunks * (3 + dim) * 4


def test_occurrences_of_frequent_rows_that_are_not_there_are_counted_once(
    library: Library, reference: Reference
) -> None:
    rng = np.random.default_rng(4)
    case = filled(library, reference, config(8), 200)
    ids = frequent(rng, most=3_000)
    plan = reference.plan(ids, np.arange(len(ids) + 1, dtype=np.int32))
    segments = plan[-len(ids) :]
    far = rng.permutation(np.nonzero(segments >= 0)[0])[:500]  # not the first of a row
    push = random_push(rng, 8, len(ids), 1)
    push.grad[segments[far]] = push.show_click[segments[far]] = 0
    reference.push(case.device.config, case.table.keys, case.rows, plan, push)
    segments[far] = len(ids)
    assert case.table.push(case.device.put(plan), len(plan), push) == 0
    same_bits(case.table.rows(), case.rows)
    assert case.table.report().out_of_range == len(far)


def test_a_frequent_row_that_is_not_there_is_left_out(
    library: Library, reference: Reference
) -> None:
    rng = np.random.default_rng(5)
    case = filled(library, reference, config(8), 200)
    ids = frequent(rng, most=3_000)
    ids[ids == 199] = -1
    offsets = np.arange(len(ids) + 1, dtype=np.int32)
    push = random_push(rng, 8, len(ids), 1)
    without = reference.plan(np.where(ids == 42, -1, ids).astype(np.int32), offsets)
    reference.push(case.device.config, case.table.keys, case.rows, without, push)
    ids[ids == 42] = 200  # the last of the plan
    plan = reference.plan(ids, offsets)
    case.table.push(case.device.put(plan), len(plan), push)
    same_bits(case.table.rows(), case.rows)
    assert case.table.report().out_of_range == 1


@pytest.mark.parametrize("turn", range(20))
def test_a_plan_of_frequent_rows_in_disorder_is_counted(
    library: Library, reference: Reference, turn: int
) -> None:
    """No sum is right then, but nothing outside of the table is read or written."""
    rng = np.random.default_rng(turn)
    case = filled(library, reference, config(8), 200)
    ids = frequent(rng, most=3_000)
    plan = reference.plan(ids, np.arange(len(ids) + 1, dtype=np.int32))
    starts = plan[3 + plan[1] : 4 + 2 * plan[1]]
    starts[:] = rng.permutation(starts) if turn % 2 else rng.integers(-9, 2 * len(ids), len(starts))
    case.table.push(case.device.put(plan), len(plan), random_push(rng, 8, len(ids), 1))
    assert case.table.report().out_of_range > 0


@pytest.mark.parametrize("clip", [False, True])
def test_sums_that_are_not_finite_are_counted_and_left_or_mended(
    library: Library, reference: Reference, clip: bool
) -> None:
    rng = np.random.default_rng(4)
    case = filled(library, reference, config(8), 20)
    ids, offsets = np.arange(20, dtype=np.int32), np.arange(21, dtype=np.int32)
    push = random_push(rng, 8, 20, 1, clip=clip, bound=2.0)
    push.grad[3, 5], push.grad[7, 2], push.grad[9, 10] = np.nan, np.inf, -np.inf
    push.show_click[11] = np.nan
    push.grad[13, 4] = 1e30  # its square is infinite, itself it is not
    plan = reference.plan(ids, offsets)
    reference.push(case.device.config, case.table.keys, case.rows, plan, push)
    assert case.table.push(case.device.put(plan), len(plan), push) == 4
    same_bits(case.table.rows(), case.rows)


def test_rows_of_both_passes_are_carried_and_the_older_table_is_left_alone(
    library: Library, reference: Reference
) -> None:
    rng = np.random.default_rng(5)
    case = filled(library, reference, config(16), 2000)
    ids, offsets = np.arange(500, dtype=np.int32), np.arange(501, dtype=np.int32)
    push = random_push(rng, 16, 500, 1)
    case.table.push(case.device.plan(ids, offsets), 4 + 3 * 500, push)
    before = case.table.rows()
    other = np.setdiff1d(rng.integers(0, 1 << 64, 1500, dtype=np.uint64), case.table.keys)
    keys = np.sort(np.concatenate([rng.permutation(case.table.keys)[:900], other]))
    following = Table(case.device, keys)
    assert following.carry(case.table) == 900
    place = {int(key): i for i, key in enumerate(case.table.keys)}
    expected = np.zeros((len(keys), case.device.words), np.float32)
    for i, key in enumerate(keys):
        if int(key) in place:
            expected[i] = before[place[int(key)]]
    flags = expected[:, 0].view(np.uint32)
    flags &= ~np.uint32(2 << 16)
    same_bits(following.rows(), expected)
    assert len(following.changed()) == 0
    same_bits(case.table.rows(), before)
    assert case.table.changed().tolist() == list(range(500))


def test_mistakes_are_named_and_change_nothing(library: Library, reference: Reference) -> None:
    case = filled(library, reference, config(8), 50)

    def plan_of(size: int) -> OnDevice:
        return case.device.put(np.zeros(size, np.int32))

    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: Device(library, config(254)), "embedx_dim is 254, expected 1 to 253"),
        (lambda: Device(library, config(8), device=4096), "device 4096: there"),
        (lambda: Table(case.device, np.array([5, 5], np.uint64)), "expected ascending"),
        (lambda: case.table.rows(np.array([50], np.int32)), "ids[0] is 50, expected 0 to 49"),
        (lambda: case.table.rows(np.array([-1], np.int32)), "ids[0] is -1"),
        (lambda: case.table.rows(np.array([4], np.int32), first=5), "ids[0] is 4, expected 5 to"),
        (lambda: Device(library, config(8, threads=0)), "threads is 0, expected at least 1"),
        (lambda: case.table.put_rows(case.rows[:10], first=45), "rows [45, 45 + 10), but the "),
        (lambda: case.table.push(case.device.put(np.zeros(3, np.int32)), 3, _push(1)), "a plan of"),
        (
            lambda: case.table.push(case.device.put(np.zeros(4, np.int32)), 4, _push(0)),
            "slots is 0",
        ),
    ]
    for call, words in cases:
        with pytest.raises(Error) as raised:
            call()
        assert raised.value.args[0] == 1
        assert words in raised.value.args[1]
    with pytest.raises(Error) as raised:
        pointer = c_void_p()
        library.call("malloc", c_uint64(1 << 62), byref(pointer))
    assert raised.value.args[0] == 2
    assert str(1 << 62) in raised.value.args[1]
    same_bits(case.table.rows(), case.rows)


def _push(slots: int) -> Push:
    return Push(np.zeros((1, 11), np.float32), np.zeros((1, 2), np.float32), slots, 11)


def test_what_ids_lists_and_plans_name_that_is_not_there_is_left_out_and_counted(
    library: Library, reference: Reference
) -> None:
    case = filled(library, reference, config(8), 50)
    none = [-1] * 40  # more than the threads of a segment
    ids = np.array([3, *none, 50, -1, -2, 2**31 - 1, 7], np.int32)
    known = np.array([3, *none, -1, -1, -1, -1, 7], np.int32)
    same_bits(case.table.pull(ids), reference.pull(case.device.config, case.rows, known))
    assert case.table.report().out_of_range == 3
    offsets = np.array([0, 42, 44, 46], np.int32)
    expected = reference.pull_pooled(case.device.config, case.rows, known, offsets, 1, 0, True)
    same_bits(case.table.pull_pooled(ids, offsets, 1, 0, True), expected)
    assert case.table.report().out_of_range == 6
    beyond = case.table.pull_pooled(known, np.array([0, 1, 99, 2], np.int32), 1, 0, True)
    same_bits(beyond[0], expected[0])
    assert case.table.report().out_of_range == 8  # an end behind the ids, and one before its begin
    push = random_push(np.random.default_rng(1), 8, 2, 1)
    wrong = [
        [2, 1, 1, 4, 0, 1, 0],  # of another pass
        [1, 9, 1, 4, 0, 1, 0],  # longer than it is
        [1, 1, 1, 50, 0, 1, 0],  # a row that is not there
        [1, 1, 1, 4, 0, 2, 0],  # occurrences behind the last
        [1, 1, 1, 4, -1, 1, 0],
        [1, 1, 0, 4, 2**31 - 1, -2, 0],  # an end before its begin
    ]
    before = case.table.rows()
    for plan in wrong:
        case.table.push(case.device.put(np.array(plan, np.int32)), len(plan), push)
    same_bits(case.table.rows(), before)
    assert case.table.report().out_of_range == 8 + len(wrong)
    repeated = np.array([1, 2, 2, 4, 4, 0, 1, 2, 0, 1], np.int32)  # two threads would write row 4
    case.table.push(case.device.put(repeated), len(repeated), push)
    far = np.array([1, 1, 2, 6, 0, 2, 0, 5], np.int32)  # segment 5 of 2
    case.table.push(case.device.put(far), len(far), push)
    assert case.table.report().out_of_range == 10 + len(wrong)
    assert case.table.changed().tolist() == [4, 6]


def test_an_absent_feasign_is_counted_where_rows_are_expected(
    library: Library, reference: Reference
) -> None:
    feasigns = np.arange(1, 101, dtype=np.uint64)
    mixed = reference.mix(feasigns)
    order = np.argsort(mixed)
    table = Table(Device(library, config()), mixed[order][:60])
    asked = np.concatenate([feasigns, np.zeros(5, np.uint64)])
    table.find(asked)
    assert table.report().absent == 0  # an evaluation
    table.expect(mixed[order][60:90])
    found = table.find(asked)
    assert (found >= 0).sum() == 60
    report = table.report()
    assert report.absent == 10
    assert report.an_absent == feasigns[order][90:].max()


def test_lists_that_instances_share_are_pooled_as_if_each_had_its_own(
    library: Library, reference: Reference
) -> None:
    rng = np.random.default_rng(8)
    case = filled(library, reference, config(16), 300)
    ids, offsets = batch(rng, 300, 20, 2)
    list_of = np.sort(rng.integers(0, 40, 60)).astype(np.int32)
    own = [ids[offsets[i] : offsets[i + 1]] for i in list_of]
    ends = np.concatenate([[0], np.cumsum([len(one) for one in own])]).astype(np.int32)
    all_ids = np.concatenate(own).astype(np.int32)
    expected = case.table.pull_pooled(all_ids, ends, 2, 3, True)
    same_bits(case.table.pull_pooled(ids, offsets, 2, 3, True, list_of), expected)
    wrong = list_of.copy()
    wrong[0], wrong[1] = 40, -1
    case.table.pull_pooled(ids, offsets, 2, 3, True, wrong)
    assert case.table.report().out_of_range == 2


def test_the_plan_of_ids_by_themselves_needs_no_offsets(
    library: Library, reference: Reference
) -> None:
    device = Device(library, config())
    ids = np.array([5, 3, -1, 5, 0], np.int32)
    plan = device.put(np.zeros(19, np.int32))
    asked = device.put(ids)
    library.call(
        *("plan", device.handle, asked.pointer, None, c_uint64(5), c_uint64(5)),
        *(c_int32(4), plan.pointer, None),
    )
    expected = reference.plan(ids, np.arange(6, dtype=np.int32), stamp=4)
    assert plan.get()[: len(expected)].tolist() == expected.tolist()


def test_bad_sums_are_counted_by_slot_and_a_push_counts_its_rows(
    library: Library, reference: Reference
) -> None:
    case = filled(library, reference, config(8), 20)
    ids, offsets = np.arange(20, dtype=np.int32), np.arange(21, dtype=np.int32)
    push = random_push(np.random.default_rng(4), 8, 20, 1)
    push.grad[3, 5] = np.nan
    slot = int(case.rows[3, :1].view(np.uint32)[0] & 0xFFFF)
    case.table.push(case.device.plan(ids, offsets), 4 + 3 * 20, push)
    assert case.table.bad_by_slot() == {slot: 1}
    report = case.table.report()
    assert (report.rows_pushed, report.ids_pushed, report.bad_rows) == (20, 20, 1)


@pytest.mark.usefixtures("late")
def test_a_parcel_is_on_the_device_when_it_has_been_sent(library: Library) -> None:
    parcel, pinned, on_device = c_void_p(), c_void_p(), c_void_p()
    library.call("open_parcel", 0, byref(parcel))
    for size in (1000, 10, 5000):
        library.call("fit_parcel", parcel, size, byref(pinned), byref(on_device))
        assert pinned.value is not None
        for turn in range(2):
            array = np.arange(size, dtype=np.uint8) + np.uint8(turn)
            memmove(pinned, pointer(array), size)
            library.call("send_parcel", parcel, size)
            memset(pinned, 0, size)  # it has been read, too
            found = np.zeros_like(array)
            library.call("to_host", pointer(found), on_device, size)
            assert found.tolist() == array.tolist()
    library.get("close_parcel", parcel)
