"""The rows of a batch on a device (hbm.place: gpu): what operators read of them and merge has the
bits of those on the host. The device is the host here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import PassError, TrainingError
from paddlebox.ranks.shared_tables import batch_rows
from paddlebox.store.options import SWITCH, TableOptions
from paddlebox.store.table import sorted_unique_keys

DIM, SLOTS, BATCH, ROWS = 5, 3, 16, 40
PLACES = (HbmPlace.HOST, HbmPlace.GPU)


@pytest.fixture(autouse=True)
def dygraph(monkeypatch: pytest.MonkeyPatch) -> None:
    paddle.disable_static()
    monkeypatch.setenv(SWITCH, "host")


@pytest.fixture
def rows_at() -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def make(place: HbmPlace, **fields: Any) -> Any:
        for before in opened:
            before.unregister()
        config = TableConfig(name="batch", embedx_dim=DIM, **fields)
        opened[:] = [batch_rows(config, TableOptions(hbm_place=place, threads=2))]
        return opened[0]

    yield make
    for left in opened:
        left.unregister()


def _keys(rows: int = ROWS) -> np.ndarray:
    return sorted_unique_keys(np.arange(1, rows + 1, dtype=np.uint64))


def _step(random: np.random.Generator, stamp: int, spoil: bool = False) -> np.ndarray:
    lengths = random.integers(0, 4, BATCH * SLOTS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = random.integers(-1, ROWS, offsets[-1]).astype(np.int32)
    counts = np.stack([np.ones(BATCH), random.random(BATCH) < 0.4], 1).astype(np.float32)
    dense = random.normal(size=(BATCH, 2)).astype(np.float32)
    out = ops.fused_pull_seqpool_cvm(
        paddle.to_tensor(ids),
        paddle.to_tensor(offsets),
        paddle.to_tensor(counts),
        paddle.to_tensor(core.Table.build_plan(ids, offsets, stamp)),
        ops.create_anchor(),
        slots=SLOTS,
        embedx_dim=DIM,
        dense=paddle.to_tensor(dense),
    )
    gradient = random.normal(size=out.shape).astype(np.float32)
    if spoil:
        gradient[:, 4] = np.nan
    with ops.raising_own_errors():
        out.backward(paddle.to_tensor(gradient))
    found: np.ndarray = out.numpy()
    return found


def _filled(rows: Any, random: np.random.Generator, stamp: int, read_only: bool = False) -> None:
    """Some rows in order, the others by their places, as they come early and late."""
    values = random.normal(size=(ROWS, 3 + DIM)).astype(np.float32)
    values[:, :2] = random.integers(0, 50, (ROWS, 2))
    late = random.permutation(np.arange(10, ROWS)).astype(np.int32)
    rows.prepare(stamp, _keys(), read_only)
    rows.fill(None, 0, values[:10])
    rows.fill(late, 0, values[late])


def test_batches_are_read_and_merged_as_on_the_host(rows_at: Callable[..., Any]) -> None:
    def run(place: HbmPlace) -> list[np.ndarray]:
        random, rows, seen = np.random.default_rng(3), rows_at(place), []
        for number in range(4):
            _filled(rows, random, 1)
            rows.open()
            seen.append(_step(random, 1))
            seen.append(_step(random, 1))  # a second lookup adds to what the first has merged
            _filled(rows, random, 1)  # the next may be prepared while one is open
            feasigns = paddle.to_tensor(np.array([[3], [0], [number + 5]], np.int64))
            pulled = ops.pull_box_sparse(feasigns, 3 + DIM)
            with ops.raising_own_errors():
                pulled.backward(paddle.ones_like(pulled))
            seen += [pulled.numpy(), np.array(rows.merged())]
            rows.open()
            seen.append(np.array(rows.merged()))
        return seen

    host, device = run(HbmPlace.HOST), run(HbmPlace.GPU)
    assert len(host) == len(device) == 20
    for expected, found in zip(host, device, strict=True):
        assert found.tobytes() == expected.tobytes()
    assert all(one.any() for one in host[:4])
    assert not host[4].any()


@pytest.mark.parametrize("place", PLACES)
def test_a_bad_gradient_ends_its_batch_and_not_the_next_pass(
    rows_at: Callable[..., Any], place: HbmPlace
) -> None:
    random, rows = np.random.default_rng(3), rows_at(place)
    _filled(rows, random, 1)
    rows.open()
    with pytest.raises(TrainingError, match="NaN or infinite"):
        _step(random, 1, spoil=True)
        rows.merged()
    _filled(rows, random, 2)
    rows.open()
    _step(random, 2)
    assert np.isfinite(rows.merged()).all()
    clipping = rows_at(place, on_bad_grad="clip")
    _filled(clipping, random, 1)
    clipping.open()
    _step(random, 1, spoil=True)
    assert np.isfinite(clipping.merged()).all()


@pytest.mark.parametrize("place", PLACES)
def test_arrays_that_do_not_belong_to_a_batch_are_errors(
    rows_at: Callable[..., Any], place: HbmPlace
) -> None:
    random, rows = np.random.default_rng(3), rows_at(place)
    with pytest.raises(ValueError, match="stamp 0"):
        rows.prepare(0, _keys(), False)
    with pytest.raises(PassError, match="no batch is prepared"):
        rows.open()
    rows.prepare(1, _keys(), False)
    values = np.zeros((2, 3 + DIM), np.float32)
    with pytest.raises(ValueError, match=f"cannot fill row {ROWS}, the batch has {ROWS} rows"):
        rows.fill(None, ROWS - 1, values)
    with pytest.raises(ValueError, match="cannot fill row -1"):
        rows.fill(np.array([3, -1], np.int32), 0, values)
    with pytest.raises(ValueError, match="values"):
        rows.fill(np.array([3], np.int32), 0, values)
    with pytest.raises(PassError, match=r"no open batch|no pass is open"):
        _step(random, 1)
    rows.open()
    with pytest.raises((ValueError, PassError), match=r"of pass|of another pass"):
        _step(random, 2)  # row ids of another pass
        rows.merged()
    _filled(rows, random, 3)
    rows.open()
    with pytest.raises(ValueError, match=f"feasigns?.* {ROWS + 9}"):
        ops.pull_box_sparse(paddle.to_tensor(np.array([ROWS + 9])), 3 + DIM)
        rows.merged()
    _filled(rows, random, 4, read_only=True)
    rows.open()
    absent = paddle.to_tensor(np.array([ROWS + 9]))
    assert not ops.pull_box_sparse(absent, 3 + DIM).numpy().any()
    with pytest.raises(PassError, match="evaluation"):
        _step(random, 4)


@pytest.mark.parametrize("place", PLACES)
def test_a_push_after_the_end_of_pushes_is_an_error_until_the_next_batch(
    rows_at: Callable[..., Any], place: HbmPlace
) -> None:
    random, rows = np.random.default_rng(3), rows_at(place)
    _filled(rows, random, 1)
    rows.open()
    _step(random, 1)
    rows.end_pushes()
    merged = np.array(rows.merged())
    with pytest.raises(PassError, match="push: table 'batch': its gradients of this step are"):
        _step(random, 1)
    assert np.array(rows.merged()).tobytes() == merged.tobytes()
    _filled(rows, random, 2)
    rows.open()
    _step(random, 2)
    assert np.array(rows.merged()).any()


def test_a_batch_on_a_missing_device_is_an_error(
    rows_at: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH)
    if core.hbm_backend() == "cuda":
        pytest.skip("this library was built with CUDA")
    with pytest.raises(PassError, match="this library's device is the CPU"):
        rows_at(HbmPlace.GPU).prepare(1, _keys(), False)
