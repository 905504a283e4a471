"""What `ranks.sync_weight_step` does to dense parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from paddlebox import ops
from paddlebox.config import Config, Phase, load_config, load_slots
from paddlebox.data.batches import Feed
from paddlebox.ranks.dense import dense_sync
from paddlebox.ranks.world import World
from paddlebox.training import pass_loop
from paddlebox.training.program import RATE, SHARE, ModelProgram
from paddlebox.training.runner import Runner, Runners, Training
from tests.conftest import ROOT
from tests.ranks.threads import coordination
from tests.support.configs import write_slots

_LOSS = np.zeros(1, np.float32)


def _config(*overrides: str) -> Config:
    return load_config(ROOT / "configs/deepfm_synthetic.yaml", list(overrides))


class Plain(ModelProgram):
    """One parameter, w, of which a step subtracts the gradient; and one value of an optimizer."""

    def __init__(self, rank: int, gradient: np.ndarray) -> None:
        self._gradient, self.gradient_size = gradient, gradient.size
        self.arrays = {
            "w": np.zeros_like(gradient),
            "w_moment": np.zeros_like(gradient),
            f"{RATE}_0": np.full(1, rank, np.float32),
        }

    def step(self, feed: Feed, *, train: bool = True) -> tuple[float, np.ndarray]:
        del feed
        if train:
            self.arrays["w"] = self.arrays["w"] - self._gradient
            self.arrays["w_moment"] = self._gradient
        return 0.0, _LOSS

    def vectors(self, feed: Feed) -> dict[str, np.ndarray]:
        raise AssertionError("no towers")

    def set_rate(self, rate: float) -> None:
        raise AssertionError("no schedule")

    def state(self) -> dict[str, np.ndarray]:
        return dict(self.arrays)

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(state)

    def parameters(self) -> dict[str, np.ndarray]:
        return {"w": self.arrays["w"]}

    view = parameters

    def set(self, state: Mapping[str, np.ndarray]) -> None:
        self.arrays |= state


def _plain(config: Config, world: World, gradient: np.ndarray) -> tuple[Runner, Plain]:
    program = Plain(world.rank, gradient)
    return Runner(program, dense_sync(world, config, weighted=False)), program


def _feed(share: float) -> Feed:
    return {SHARE: np.full(1, share, np.float32)}


def _averaged(every: int, steps: int, shares: tuple[float, ...]) -> list[list[float]]:
    """(R) parameter of each rank before the first step, after each, and at the end of the pass; a
    step of rank r adds r + 1."""
    config = _config(f"ranks.sync_weight_step={every}", "optimizer.averaging=0")

    def train(world: World) -> list[float]:
        runner, program = _plain(config, world, np.full(1, -(world.rank + 1), np.float32))
        found = [0.0]
        for _ in range(steps):
            runner.train_step(_feed(shares[world.rank]))
            found.append(float(program.arrays["w"][0]))
        runner.finish_pass()
        return [*found, float(program.arrays["w"][0])]

    return coordination(len(shares), train)


def test_parameters_are_averaged_after_just_so_many_steps_and_when_the_pass_ends() -> None:
    # After steps 3 and 6 each has the mean, of 3, 6, 9 and of 9, 12, 15; then 2 steps alone.
    assert _averaged(3, 8, (1 / 3, 1 / 3, 1 / 3)) == [
        [0, 1, 2, 6, 7, 8, 12, 13, 14, 16],
        [0, 2, 4, 6, 8, 10, 12, 14, 16, 16],
        [0, 3, 6, 6, 9, 12, 12, 15, 18, 16],
    ]
    assert _averaged(1, 2, (0.5, 0.5)) == [[0, 1.5, 3, 3]] * 2
    assert _averaged(9, 2, (0.5, 0.5)) == [[0, 1, 2, 3], [0, 2, 4, 3]]


def test_a_rank_without_instances_takes_no_step_and_is_averaged() -> None:
    assert _averaged(2, 3, (1.0, 0.0)) == [[0, 1, 1, 2, 1.5], [0, 0, 1, 1, 1.5]]


def test_the_end_of_a_pass_averages_the_optimizers_state_and_restarts_the_count() -> None:
    config = _config("ranks.sync_weight_step=3", "optimizer.averaging=0")

    def train(world: World) -> list[dict[str, list[float]]]:
        runner, program = _plain(config, world, np.full(1, -(world.rank + 1), np.float32))
        found: list[dict[str, list[float]]] = []
        for steps in (2, 2, 1):  # of a pass, and of the next
            for _ in range(steps):
                runner.train_step(_feed(0.5))
            if steps == 2 and not found:
                runner.finish_pass()
            found.append({name: array.tolist() for name, array in program.arrays.items()})
        return found

    ends, seconds, thirds = zip(*coordination(2, train), strict=True)
    for rank, state in enumerate(ends):  # a learning rate is the config's
        assert state == {"w": [3], "w_moment": [-1.5], f"{RATE}_0": [rank]}
    assert [state["w"] for state in seconds] == [[5], [7]]  # the third step since the run began
    assert [state["w"] for state in thirds] == [[7.5], [7.5]]


# ---- the runners of a config


@pytest.fixture
def slots(tmp_path: Path) -> Any:
    return load_slots(write_slots(tmp_path, y="label", a="sparse"))


@pytest.fixture(params=["pir", "dygraph"])
def program(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    ops.paddle.disable_static()


def _built(program: str, *mode: str) -> Config:
    return _config(
        *(f"trainer.program={program}", "model.type=dnn", "model.hidden=[3]"),
        *("optimizer.type=sgd", "optimizer.learning_rate=1", "optimizer.averaging=0", *mode),
    )


def _flat(of_names: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in of_names.values()])


def _with_zeros(config: Config, slots: Any, steps: int) -> list[np.ndarray]:
    """(steps + 2) the parameters of the config's runner, before the first of so many steps, after
    each and at the end of the pass. A step subtracts `_gradient`; the other rank begins with zeros
    as parameters, and has zeros as gradients."""

    def train(world: World) -> list[np.ndarray]:
        program: Any
        if world.rank == 0:
            runners = Runners(config, slots, partial(dense_sync, world))
            runner, finish_pass = runners.of(Phase.UPDATE), runners.finish_pass
            program = runner.program
            first = program.parameters()
            size = len(_flat(first))
            gradient = _gradient(size)
            sizes = np.cumsum([array.size for array in first.values()])[:-1]

            def step(feed: Feed, *, train: bool) -> tuple[float, np.ndarray]:
                del feed, train
                parts = np.split(_flat(program.parameters()) - gradient, sizes)
                named = zip(first.items(), parts, strict=True)
                program.set({n: part.reshape(a.shape) for (n, a), part in named})
                return 0.0, _LOSS

            program.step = step
            world.gather("shapes", {n: a.shape for n, a in first.items()})
        else:
            shapes = world.first("shapes", None)
            runner, program = _plain(config, world, np.zeros(1, np.float32))
            finish_pass = runner.finish_pass
            program.arrays = {n: np.zeros(shape, np.float32) for n, shape in shapes.items()}
            size = len(_flat(program.arrays))
            program.step = lambda _, **__: (0.0, _LOSS)
            program.parameters = lambda: program.arrays
        found = [_flat(program.parameters())]
        for _ in range(steps):
            runner.train_step(_feed(0.5))
            found.append(_flat(program.parameters()))
        finish_pass()
        return [*found, _flat(program.parameters())]

    first, _ = coordination(2, train)
    return first


def _gradient(size: int) -> np.ndarray:
    return np.linspace(1, 2, size, dtype=np.float32)


def test_the_runner_of_a_config_averages_after_just_so_many_steps(program: str, slots: Any) -> None:
    config = _built(program, "ranks.sync_weight_step=2")
    start, *found = _with_zeros(config, slots, steps=3)
    step = _gradient(len(start))
    mean = (start - 2 * step) / 2
    expected = [start - step, mean, mean - step, mean - step / 2]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_ranks_agree_about_a_pass_before_its_dense_state_is_taken() -> None:
    done: list[str] = []

    class EnoughError(Exception):
        pass

    class Ended:
        def finish_pass(self) -> None:
            done.append("finish_pass")

        def dense_state(self) -> None:
            raise EnoughError

    some: Any = MagicMock()
    with pytest.raises(EnoughError):
        training = Training(_config(), some, some, some, some, Ended())  # type: ignore[arg-type]
        pass_loop.PassLoop(training, some, some, [])._end(some, None, some, {}, {})
    assert done == ["finish_pass"]
