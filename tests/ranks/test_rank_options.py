"""What the keys of `ranks:` do to a step. Those of dense parameters are in test_dense_modes.py."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from paddlebox.ranks.plans import STEP, Step
from paddlebox.ranks.stepping import Stepping, with_next
from paddlebox.ranks.world import World
from tests.ranks.test_error_feedback import _RATE, _config, _gradients, _Pass
from tests.ranks.threads import coordination
from tests.ranks.worker import endpoints


def _one_step(folder: Path, ranks: int, *options: str) -> tuple[np.ndarray, Any]:
    """(keys, 3 + D) rows that the first rank fetches after a step, and its traffic."""
    config = _config(*options)

    def train(world: World) -> tuple[np.ndarray, Any]:
        one = _Pass(config, folder / "-".join(options), world)
        with one.table:
            one.step(_gradients(world.rank))
            rows = one._exchange.fetch(one._step, one.channel)
            return rows, one._exchange._traffic

    return coordination(ranks, train)[0]


@pytest.mark.parametrize(
    ("wire", "half"), [("float16", 2**-11), ("bfloat16", 2**-8), ("int8", 1 / 254)]
)
def test_rows_are_rounded_to_the_format_of_ranks_rows(
    tmp_path: Path, wire: str, half: float
) -> None:
    """half: half of the format's last bit, in parts of the largest value."""
    (exact, _), (rounded, _) = (
        _one_step(tmp_path, 2, f"ranks.rows={to}") for to in ("float32", wire)
    )
    largest = np.abs(exact[:, 2:]).max()
    assert largest == pytest.approx(_RATE * 0.2, rel=0.2)
    assert 0.3 < np.abs(rounded - exact)[:, 2:].max() / (half * largest) <= 1.01
    np.testing.assert_array_equal(rounded[:, :2], exact[:, :2])


def test_ranks_of_a_host_are_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 ranks, 2 are of the other node: half of the rows and gradients go there."""
    for per_node, share in ((4, 0.0), (2, 2 / 3)):
        monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", endpoints(4, per_node))
        _, traffic = _one_step(tmp_path / str(per_node), 4)
        for what in ("gradients", "rows"):
            far, all_ = traffic.between_nodes.get(what, 0), traffic.sent[what]
            assert far == pytest.approx(share * all_, rel=0.2)


class _Inline:
    """A channel that does its tasks at once, in their order."""

    def submit(self, call: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments))
        return done


def _order(staleness: int, steps: int) -> str:
    """Fetches of rows (f0, f1, ...) and what is given to their owners (g0, g1, ...)."""
    done: list[str] = []
    exchange = SimpleNamespace(
        options=_config(f"ranks.staleness={staleness}").ranks,
        fetch=lambda step, _: done.append(f"f{step.stamp}"),
        give=lambda step, *_: done.append(f"g{step.stamp}"),
    )
    channel: Any = _Inline()
    stepping = Stepping(channel, channel, exchange, MagicMock(), "")  # type: ignore[arg-type]
    none = np.zeros(0, np.int32)
    feeds = [{STEP: Step(n, 1, 2, none.copy(), none, [], [], none)} for n in range(steps)]
    for feed in with_next([stepping], feeds, train=True):
        with stepping.step(feed):
            pass
    return " ".join(done)


def test_rows_lack_the_gradients_of_as_many_steps_as_staleness_says() -> None:
    assert _order(0, 4) == "f0 g0 f1 g1 f2 g2 f3 g3"
    assert _order(1, 4) == "f0 f1 g0 f2 g1 f3 g2 g3"
    assert _order(3, 5) == "f0 f1 f2 f3 g0 f4 g1 g2 g3 g4"
