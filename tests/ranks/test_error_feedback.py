"""What error feedback does to the rows that quantized gradients train."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config, load_config
from paddlebox.ranks.exchange import core
from paddlebox.ranks.plans import ShardedPass, Step
from paddlebox.ranks.row_messages import Bare
from paddlebox.ranks.shared_tables import SharedTables
from paddlebox.ranks.world import World
from paddlebox.training.opening import open_table
from tests.conftest import ROOT
from tests.ranks.threads import coordination
from tests.support.configs import write_slots
from tests.support.marks import long, slow

_KEYS = (np.arange(24, dtype=np.uint64) + np.uint64(1)) * np.uint64(2**64 // 25)
_RATE = 2.0**-5
_DIM, _COLUMNS = 4, 3 + 4
_STEPS = 200
_QUANTIZED = ("float16", "bfloat16", "int8")


def _config(*overrides: str) -> Config:
    """A row's weights are -_RATE times the sum of its gradients."""
    rules = [
        f"table.{part}.{key}={value}"
        for part in ("embed", "embedx")
        for key, value in (("rule", "naive"), ("learning_rate", _RATE), ("initial_range", 0))
    ]
    width = [f"table.embedx_dim={_DIM}", "table.embedx_threshold=0"]
    return load_config(ROOT / "configs/deepfm_synthetic.yaml", [*rules, *width, *overrides])


class _Pass:
    """Of one rank: every step has a gradient for every key."""

    def __init__(
        self, config: Config, folder: Path, world: World, *, feedback: bool = True
    ) -> None:
        # Tables of one process go by their names.
        named = config.table.model_copy(update={"name": f"rank {world.rank}"})
        config = config.model_copy(update={"table": named})
        self.table: Any = open_table(config, folder / str(world.rank), world=world)
        self.channel = world.channels["step"]
        tables: Any = self.table.exchange
        self._exchange = tables.shards[named.name].exchange
        self._exchange._feedback &= feedback
        staged = self._begin()
        rows = [staged.row_at_owner[a:b] for a, b in itertools.pairwise(staged.bounds.tolist())]
        of_step = np.ones(1, np.int32)
        (asked,), _ = self._exchange.request([rows], of_step, self.channel)
        ids = np.concatenate(asked)
        self._step = Step(
            staged.stamp,
            1,
            world.size,
            staged.keys,
            np.arange(len(_KEYS), dtype=np.int32),
            np.diff(staged.bounds).tolist(),
            asked,
            core.Table.build_plan(ids, np.arange(len(ids) + 1, dtype=np.int32), staged.stamp),
            bare=Bare.of(len(ids), len(_KEYS)),
        )
        self.step(np.zeros((len(_KEYS), _COLUMNS - 2)))  # from then on every row has an embedx

    def _begin(self, *, train: bool = True) -> ShardedPass:
        of_set = self.table.stage(_KEYS, train=train)
        (staged,) = of_set.parts
        assert isinstance(staged, ShardedPass)
        self.staged: ShardedPass = staged
        self.table.begin(of_set)
        return staged

    def step(self, gradient: np.ndarray) -> None:
        """gradient: (keys, 1 + D) of embed_w and embedx."""
        whole = np.zeros((len(_KEYS), _COLUMNS), np.float32)
        whole[:, 0], whole[:, 2:] = 1, gradient
        self._exchange.fetch(self._step, self.channel)
        self._exchange.give(self._step, self.channel, whole)

    def applied(self) -> np.ndarray:
        """(keys of this rank, 1 + D) sums of the gradients that the owner has applied."""
        ids = self.staged.own.row_of_key
        rows = np.empty((len(ids), _COLUMNS), np.float32)
        core.pull_into(self.table.first.native, ids, rows)
        return rows[:, 2:].astype(np.float64) / -_RATE

    def end(self) -> np.ndarray:
        """`applied`, after the end of the pass."""
        self.table.end()
        self._begin(train=False)
        found = self.applied()
        self.table.abandon(evaluation=True)
        return found

    def kept(self, ranks: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(R) rows of each owner that this rank has something left for, and (n, 1 + D) of it."""
        residual = self._exchange._residual
        if residual is None:
            return [(np.empty(0, np.int32), np.empty((0, _COLUMNS - 2)))] * ranks
        return [(rows, left[:, 1:]) for rows, left in zip(*residual.left(), strict=True)]


def _gradients(rank: int) -> np.ndarray:
    """(keys, 1 + D) the same in every step, so that each rounding is off to the same side."""
    return np.random.default_rng(rank).uniform(-0.1, 0.1, (len(_KEYS), _COLUMNS - 2))


def _after_steps(
    config: Config, folder: Path, ranks: int, *, feedback: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(keys, 1 + D) what owners have applied after _STEPS steps; what the ranks have kept then;
    what owners have applied at the end of the pass."""

    def train(world: World) -> tuple[Any, ...]:
        one = _Pass(config, folder, world, feedback=feedback)
        with one.table:
            for _ in range(_STEPS):
                one.step(_gradients(world.rank))
            applied, kept = one.applied(), one.kept(ranks)
            ids = one.staged.own.row_of_key
            return ids, applied, kept, one.end()

    found = coordination(ranks, train)
    kept = []
    for owner, (ids, *_) in enumerate(found):
        of_owner = np.zeros((int(ids.max()) + 1, _COLUMNS - 2))
        for _, _, of_rank, _ in found:
            np.add.at(of_owner, of_rank[owner][0], of_rank[owner][1])
        kept.append(of_owner[ids])
    return (
        np.concatenate([applied for _, applied, _, _ in found]),
        np.concatenate(kept),
        np.concatenate([ended for *_, ended in found]),
    )


def _whole(ranks: int) -> np.ndarray:
    """(keys, 1 + D) the sum of all gradients."""
    of_ranks = [_gradients(rank).astype(np.float32).astype(np.float64) for rank in range(ranks)]
    return _STEPS * np.sum(of_ranks, axis=0)


def _bias(found: np.ndarray) -> float:
    return float(np.abs(found - _whole(2)).mean())


@pytest.mark.parametrize("wire", [*map(slow, _QUANTIZED[:2]), _QUANTIZED[2]])
def test_what_was_applied_and_what_was_kept_are_the_sum_of_the_gradients(
    tmp_path: Path, wire: str
) -> None:
    config = _config(f"ranks.gradients={wire}")
    applied, kept, ended = _after_steps(config, tmp_path, 2)
    assert np.abs(kept).max() > 0
    np.testing.assert_allclose(applied + kept, _whole(2), atol=2e-4)
    # The end of the pass sends what was kept, which is rounded once more.
    assert _bias(ended) < 0.1 * _bias(applied) + 1e-5


@pytest.mark.parametrize("wire", [*map(long, _QUANTIZED[:2]), slow(_QUANTIZED[2])])
def test_without_error_feedback_the_bias_is_five_times_as_large_at_least(
    tmp_path: Path, wire: str
) -> None:
    config = _config(f"ranks.gradients={wire}")
    bias = {}
    for feedback in (True, False):
        folder = tmp_path / str(feedback)
        applied, kept, ended = _after_steps(config, folder, 2, feedback=feedback)
        bias[feedback] = _bias(applied)
        if not feedback:
            assert not kept.any()
            np.testing.assert_array_equal(ended, applied)
    assert bias[False] >= 5 * bias[True] > 0


def test_each_of_several_tables_exchanges_as_the_config_says(tmp_path: Path) -> None:
    slots = write_slots(tmp_path, y="label", a="sparse", b={"table": "wide"})
    for wire, feedback in (("int8", True), ("float32", False)):
        config = _config(
            *(f"data.slots={slots}", "extra_tables={wide: {embedx_dim: 2}}"),
            f"ranks.gradients={wire}",
        )
        folder = tmp_path / wire

        def found(world: World, config: Config = config, folder: Path = folder) -> list[bool]:
            if world.rank == 1:  # one of them will do: nothing is exchanged yet
                return []
            with open_table(config, folder, world=world) as table:
                assert isinstance(table.exchange, SharedTables)
                shards = table.exchange.shards.values()
                return [shard.exchange._feedback for shard in shards]

        assert coordination(2, found) == [[feedback, feedback], []]
