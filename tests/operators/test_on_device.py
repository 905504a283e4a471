"""Rows of an open pass on a device (hbm.place: gpu): whatever a program does, the rows that it
reads and leaves are those of the host's tier, to the bit.

The device is the host here: the sources of ops/cuda, compiled without nvcc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import HbmPlace
from paddlebox.errors import ConfigError, PassError, TrainingError
from paddlebox.store.options import SWITCH, check_place
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.table_set import StagedSet
from tests.support.fixtures import OpenTable
from tests.support.inside import head_of

DIM, SLOTS, BATCH = 4, 3, 16
RULES = ("naive", "adagrad", "std_adagrad", "adagrad_v2", "adam", "shared_adam", "ftrl")

Seen = tuple[list[np.ndarray], str]  # what steps read, and the digest at the end
Both = Callable[..., list[Seen]]


@pytest.fixture(autouse=True)
def dygraph(monkeypatch: pytest.MonkeyPatch) -> None:
    paddle.disable_static()
    monkeypatch.setenv(SWITCH, "host")


@pytest.fixture
def both(open_table: OpenTable) -> Both:
    """Runs a scenario over a table of each place; returns what each gave."""

    def run(
        scenario: Callable[[Table], Seen], fields: dict[str, Any] | None = None, **arguments: Any
    ) -> list[Seen]:
        found = []
        for place in (HbmPlace.HOST, HbmPlace.GPU):
            folder = arguments.get("folder")
            own = {"folder": folder / place} if folder else {}
            table = open_table(fields, hbm_place=place, **{**arguments, **own})
            found.append(scenario(table))
            table.close()
        return found

    return run


@pytest.fixture
def on_device(open_table: OpenTable) -> OpenTable:
    return lambda fields=None, **more: open_table(fields, hbm_place=HbmPlace.GPU, **more)


def stage(table: Table, feasigns: Sequence[int] | np.ndarray, **arguments: Any) -> StagedSet:
    slots = (np.arange(len(feasigns)) % 5).astype(np.uint16)
    return table.stage(sorted_unique_keys(np.array(feasigns, np.uint64)), slots, **arguments)


def begin(table: Table, feasigns: Sequence[int] | np.ndarray, **arguments: Any) -> StagedSet:
    staged = stage(table, feasigns, **arguments)
    table.begin(staged)
    return staged


def int64(feasigns: ArrayLike) -> Any:
    return paddle.to_tensor(np.array(feasigns, np.uint64).view(np.int64))


def batch_of(random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Row ids, -1 among them, and offsets."""
    lengths = random.integers(0, 4, BATCH * SLOTS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return random.integers(-1, rows, offsets[-1]).astype(np.int32), offsets


def step(
    random: np.random.Generator,
    stamp: int,
    ids: np.ndarray,
    offsets: np.ndarray,
    *,
    plan: np.ndarray | None = None,
    use_cvm: bool = True,
    dense: np.ndarray | None = None,
    spoil: tuple[slice, slice] | None = None,
) -> np.ndarray:
    """A forward and a backward of the fused operator. Returns what it read."""
    click = (random.random((BATCH, 1)) < 0.4).astype(np.float32)
    words = core.Table.build_plan(ids, offsets, stamp) if plan is None else plan
    out = ops.fused_pull_seqpool_cvm(
        paddle.to_tensor(ids),
        paddle.to_tensor(offsets),
        paddle.to_tensor(np.concatenate([np.ones_like(click), click], 1)),
        paddle.to_tensor(words),
        ops.create_anchor(),
        slots=SLOTS,
        embedx_dim=DIM,
        use_cvm=use_cvm,
        dense=None if dense is None else paddle.to_tensor(dense),
    )
    gradient = random.normal(size=out.shape).astype(np.float32) * 0.1
    if spoil is not None:
        gradient[spoil] = np.nan
    with ops.raising_own_errors():
        out.backward(paddle.to_tensor(gradient))
    return out.numpy()


def assert_same(found: list[Seen]) -> None:
    (host, digest), (device, digest_of_device) = found
    assert len(host) == len(device)
    for ours, theirs in zip(device, host, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert any(one.any() for one in host)
    assert digest_of_device == digest


def passes(*, days: bool = False, evaluate: bool = False) -> Callable[[Table], Seen]:
    """Passes that share some of their keys, a few steps each."""

    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(5), []
        for number in range(1, 6):
            staged = begin(table, random.choice(300, 150, replace=False) + 1, day=100 + number)
            for turn in range(3):
                ids, offsets = batch_of(random, staged.rows)
                seen.append(step(random, staged.stamp, ids, offsets, use_cvm=turn != 1))
            table.end(number)
            table.commit(day=100 + number)
            if days:
                table.life.shrink_table()
            if evaluate:
                begin(table, random.choice(400, 100, replace=False) + 1, train=False)
                feasigns = int64(random.integers(0, 400, (9, 2)))
                with paddle.no_grad():
                    pulled = ops.pull_box_sparse(feasigns, 3 + DIM, anchor=ops.create_anchor())
                seen.append(pulled.numpy())
                table.end()
        counters = table.counters()
        seen.append(np.array([counters[n] for n in ("rows_pulled", "rows_pushed", "ids_pushed")]))
        return seen, table.digest()

    return run


@pytest.mark.parametrize("rule", RULES)
def test_passes_that_share_rows_leave_the_same_rows(both: Both, rule: str) -> None:
    fields = {"embed": {"rule": rule}, "embedx": {"rule": rule}, "embedx_threshold": 1.0}
    assert_same(both(passes(), fields, slot_rates=[1.0, 0.5, 1.0, 2.0]))


def test_days_that_end_and_evaluations_between_passes_do_not_show(
    both: Both, tmp_path: Path
) -> None:
    fields = {"embedx_threshold": 0.0, "life": {"delete_threshold": 0.3}}
    assert_same(both(passes(days=True, evaluate=True), fields, folder=tmp_path))


def passes_ahead(*, event: bool, evaluate: bool) -> Callable[[Table], Seen]:
    """Passes that are staged while the pass before is open, with some of its keys. A step does not
    change all rows, so that new rows of a pass are new again in the next one."""

    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(6), []

        def following() -> StagedSet:
            return stage(table, random.choice(300, 150, replace=False) + 1)

        staged = following()
        for number in range(1, 6):
            table.begin(staged)
            seen.append(step(random, staged.stamp, *batch_of(random, staged.rows)))
            staged, opened = following(), staged
            seen.append(step(random, opened.stamp, *batch_of(random, opened.rows)))
            table.end(number)
            if evaluate:
                begin(table, random.choice(400, 100, replace=False) + 1, train=False)
                table.end()
            table.commit()
            if event:
                table.life.shrink_table()
        table.drop_staged(staged)
        return seen, table.digest()

    return run


@pytest.mark.parametrize("late", ["", "1"], ids=["at once", "late"])
@pytest.mark.parametrize("event", [False, True])
@pytest.mark.parametrize("evaluate", [False, True])
def test_passes_whose_rows_come_while_the_pass_before_trains_do_not_show(
    both: Both,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    late: str,
    event: bool,
    evaluate: bool,
) -> None:
    monkeypatch.setenv("PADDLEBOX_DEVICE_LATE", late)
    fields = {"embedx_threshold": 0.0, "life": {"delete_threshold": 0.3}}
    scenario = passes_ahead(event=event, evaluate=evaluate)
    assert_same(both(scenario, fields, folder=tmp_path))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_rows_of_16_bits_that_stay_on_the_device_do_not_show(
    both: Both, precision: str, tmp_path: Path
) -> None:
    fields = {"embedx_threshold": 1.0, "row_precision": precision}
    assert_same(both(passes(evaluate=True), fields, folder=tmp_path))


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("rule", RULES)
def test_rows_with_a_second_embedding_do_not_show(both: Both, rule: str, precision: str) -> None:
    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(8), []
        for number in range(1, 4):
            feasigns = random.choice(40, 30, replace=False) + 1
            begin(table, feasigns)
            for turn in range(3):
                slots = [int64(random.choice(feasigns, (BATCH, 1))) for _ in range(SLOTS)]
                plain, expand = ops.pull_box_extended_sparse(
                    slots, 3 + DIM, 5, mask=[3, 1, 3], anchor=ops.create_anchor()
                )
                parts = [*plain, *expand]
                gradients = [random.normal(size=part.shape).astype(np.float32) for part in parts]
                for gradient in gradients[: len(plain)]:
                    gradient[:, :2] = 1.0, turn == 1
                paddle.autograd.backward(parts, [paddle.to_tensor(g) for g in gradients])
                seen += [part.numpy() for part in parts]
            table.end(number)
            table.commit()
        return seen, table.digest()

    fields = {"expand_dim": 5, "embedx": {"rule": rule}, "row_precision": precision}
    assert_same(both(run, {**fields, "embedx_threshold": 1.0}))


def test_rows_without_a_second_embedding_say_so(on_device: OpenTable) -> None:
    table = on_device()
    begin(table, [7])
    with pytest.raises(PassError, match=r"no expand part; set table\.expand_dim"):
        ops.pull_box_extended_sparse([int64([[7]])], 3 + DIM, 0, anchor=ops.create_anchor())


@pytest.mark.parametrize("when", ["before the pass", "in it"])
def test_slots_that_are_not_counted_do_not_show(both: Both, when: str) -> None:
    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(9), []
        only = [True, False, True, False, True]
        if when == "before the pass":
            table.first.set_counted(only)
        for number in (1, 2):
            staged = begin(table, range(1, 60))
            for turn in range(2):
                if when == "in it":
                    table.first.set_counted(only if turn == 0 else [])
                ids, offsets = batch_of(random, staged.rows)
                seen.append(step(random, staged.stamp, ids, offsets))
            table.end(number)
            table.commit()
        seen.append(np.sort(table.read_all()[1][:, 1]))  # shows
        return seen, table.digest()

    assert_same(both(run))


def test_the_time_of_pulls_and_pushes_is_known_when_a_pass_has_ended(
    on_device: OpenTable,
) -> None:
    table = on_device()
    random = np.random.default_rng(9)
    for number in (1, 2):
        before = table.counters()
        staged = begin(table, range(1, 60))
        ids, offsets = batch_of(random, staged.rows)
        step(random, staged.stamp, ids, offsets)
        table.end(number)
        table.commit()
        after = table.counters()
        assert after["pull_ns"] > before["pull_ns"]
        assert after["push_ns"] > before["push_ns"]


def test_rows_of_16_bits_and_feasigns_that_are_refused_do_not_show(
    both: Both,
) -> None:
    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(2), []
        for number in range(1, 4):
            feasigns = np.arange(1, 100, dtype=np.uint64)
            keys = sorted_unique_keys(feasigns)
            counts = ((keys % np.uint64(3)) + np.uint64(number == 2)).astype(np.uint32)
            table.count_keys(keys, counts)
            staged = table.stage(keys)
            table.begin(staged)
            asked = int64(random.integers(0, 100, (BATCH, 3)))
            out = ops.pull_box_sparse(asked, 3 + DIM, anchor=ops.create_anchor())
            gradient = random.normal(size=out.shape)
            out.backward(paddle.to_tensor(gradient.astype(np.float32)))
            seen += [out.numpy(), np.array([staged.refused])]
            table.end(number)
            table.commit()
        assert seen[1] > 0
        return seen, table.digest()

    fields = {"row_precision": "bfloat16", "admission": {"min_count": 2}}
    assert_same(both(run, fields))


def test_feasigns_plans_made_by_the_device_and_dense_features_do_not_show(
    both: Both,
) -> None:
    none = np.zeros(1, np.int32)

    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(3), []
        staged = begin(table, range(1, 60))
        for _ in range(3):
            feasigns, offsets = batch_of(random, 60)
            feasigns = feasigns.astype(np.int64).clip(0)
            seen.append(step(random, staged.stamp, feasigns, offsets, plan=none))
            dense = random.normal(size=(BATCH, 5)).astype(np.float32)
            ids, offsets = batch_of(random, staged.rows)
            seen.append(step(random, staged.stamp, ids, offsets, plan=none, dense=dense))
            grad = random.normal(size=(4, 2, 3 + DIM)).astype(np.float32)
            pushed = int64([[1, 2], [0, 3], [1, 1], [9, 9]])
            seen.append(ops.push_box_sparse(pushed, paddle.to_tensor(grad)).numpy())
        table.end(1)
        table.commit()
        return seen, table.digest()

    assert_same(both(run))


def test_lists_that_instances_share_do_not_show(both: Both) -> None:
    def run(table: Table) -> Seen:
        random, seen = np.random.default_rng(4), []
        staged = begin(table, range(1, 60))
        lengths = random.integers(0, 4, 30)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        list_of = np.concatenate([np.arange(30), random.integers(0, 30, BATCH * SLOTS - 30)])
        ids = random.integers(0, staged.rows, ends[-1]).astype(np.int32)
        offsets = np.concatenate([ends, list_of]).astype(np.int32)
        own = [ids[ends[i] : ends[i + 1]] for i in list_of]
        all_ends = np.cumsum([0, *map(len, own)]).astype(np.int32)
        plan = core.Table.build_plan(np.concatenate(own), all_ends, staged.stamp)
        for _ in range(2):
            seen.append(step(random, staged.stamp, ids, offsets, plan=plan))
        table.end(1)
        table.commit()
        return seen, table.digest()

    assert_same(both(run))


@pytest.mark.parametrize("on_bad_grad", ["skip", "clip"])
def test_gradients_that_are_not_finite_are_counted_by_slot_and_skipped_or_clipped(
    both: Both, on_bad_grad: str
) -> None:
    def run(table: Table) -> Seen:
        random = np.random.default_rng(6)
        staged = begin(table, range(1, 60))
        ids, offsets = batch_of(random, staged.rows)
        step(random, staged.stamp, ids, offsets)
        seen = [step(random, staged.stamp, ids, offsets, spoil=(slice(0, 3), slice(2, 30)))]
        table.end(1)
        table.commit()
        bad = table.counters()["bad_grads"]
        assert bad
        return [*seen, np.array(sorted(bad.items()))], table.digest()

    assert_same(both(run, {"on_bad_grad": on_bad_grad}))


def test_gradients_that_are_not_finite_are_an_error_that_keeps_the_commit(
    on_device: OpenTable, tmp_path: Path
) -> None:
    table = on_device(folder=tmp_path)
    random = np.random.default_rng(6)
    for number in (1, 2):
        staged = begin(table, range(1, 60))
        ids, offsets = batch_of(random, staged.rows)
        if number == 1:
            step(random, staged.stamp, ids, offsets)
            table.end(1)
            table.commit()
    with pytest.raises(TrainingError, match=r"rows is NaN or infinite.*on_bad_grad"):
        step(random, staged.stamp, ids, offsets, spoil=(slice(0, 3), slice(2, 30)))
    with pytest.raises(TrainingError, match="rows is NaN or infinite"):
        table.end(2)  # nor does the pass end as if nothing had been
    assert sum(table.counters()["bad_grads"].values()) > 0
    table.abandon()
    assert head_of(table).version == 1


def test_what_a_batch_names_that_is_not_there_is_an_error_and_no_crash(
    on_device: OpenTable,
) -> None:
    table = on_device()
    random = np.random.default_rng(7)
    staged = begin(table, range(1, 20))
    ids, offsets = batch_of(random, staged.rows)
    plan = core.Table.build_plan(ids, offsets, staged.stamp)

    def wrong(at: int, value: int) -> np.ndarray:
        words = plan.copy()
        words[at] = value
        return words

    cases = [
        {"ids": np.where(ids == 3, 1 << 30, ids).astype(np.int32), "plan": plan},
        {"ids": np.where(ids == 3, -7, ids).astype(np.int32), "plan": plan},
        {"offsets": np.where(offsets == offsets[9], 1 << 29, offsets).astype(np.int32)},
        {"plan": wrong(0, staged.stamp + 1)},
        {"plan": wrong(1, 1 << 28)},
        {"plan": wrong(2, -5)},
        {"plan": wrong(4, 1 << 27)},
        {"plan": wrong(-1, 1 << 26)},
        {"plan": wrong(3 + 2 * int(plan[1]), 1 << 25)},
    ]
    for case in cases:
        arguments = {"ids": ids, "offsets": offsets, "plan": plan, **case}
        with pytest.raises(ValueError, match="of batches do not fit pass"):
            step(random, staged.stamp, **arguments)
        table.abandon()
        table.close()
        table = on_device()
        staged = begin(table, range(1, 20))
    with pytest.raises(ValueError, match="one of them 88, are not among the keys"):
        ops.pull_box_sparse(int64([[1], [88], [77]]), 3 + DIM, anchor=ops.create_anchor())


def test_calls_out_of_order_are_errors(on_device: OpenTable) -> None:
    table = on_device()
    with pytest.raises(PassError, match="begin_pass is missing"):
        ops.pull_box_sparse(int64([[7]]), 3 + DIM, anchor=ops.create_anchor())
    grad = paddle.to_tensor(np.ones((1, 3 + DIM), np.float32))
    with pytest.raises(PassError, match="begin_pass is missing"):
        ops.push_box_sparse(int64([[7]]), grad)
    with pytest.raises(PassError, match="end_pass: no pass is open"):
        table.end()
    begin(table, [7])
    ops.push_box_sparse(int64([[7]]), grad)
    with pytest.raises(PassError, match=r"are on the GPU while a pass is open"):
        table.first.native.pull_pooled(
            *(np.zeros(1, np.int32), np.array([0, 1], np.int32), 1, True),
            np.zeros((1, 3 + DIM), np.float32),
        )
    table.end(1)
    table.commit()
    begin(table, [7, 8], train=False)
    with pytest.raises(PassError, match="evaluation"):
        ops.push_box_sparse(int64([[7]]), grad)


def test_a_library_without_cuda_says_so_before_a_pass_is_read(
    on_device: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH)
    if core.hbm_backend() == "cuda":
        pytest.skip("this library was built with CUDA")
    with pytest.raises(ConfigError, match=r"there is no libpaddlebox_gpu\.so"):
        check_place(HbmPlace.GPU)
    table = on_device()
    with pytest.raises(PassError, match="this library's device is the CPU"):
        begin(table, [7])
    monkeypatch.setenv(SWITCH, "host")
    check_place(HbmPlace.GPU)


def test_a_pass_that_did_not_begin_can_begin_later(
    on_device: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH)
    if core.hbm_backend() == "cuda":
        pytest.skip("this library was built with CUDA")
    table = on_device()
    staged = table.stage(sorted_unique_keys(np.array([7], np.uint64)))
    for _ in range(2):
        with pytest.raises(PassError, match="this library's device is the CPU"):
            table.begin(staged)
    table.drop_staged(staged)
