"""The program of a model that reads sequences of users: created at export, run at prediction.

It scores candidates after the events of one user. The events come in two parts: those whose keys
and values an earlier call returned, and new ones. `paddlebox.ops.jagged_attention` computes the
attention, so the program runs only where this package is loaded.

Letters: P = known events, E = new events, G = candidates, I = width of a lookup's result, K = width
of the keys and values of an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config import Config
from paddlebox.nn.hstu import Continued, Tokens
from paddlebox.serving.inference import create_predictor

paddle = ops.paddle

_INPUTS: dict[str, tuple[str, list[int]]] = {
    "box_events": ("float32", [-1, -1]),  # (E, I)
    "box_label": ("float32", [-1, 1]),  # (E, 1)
    "box_candidates": ("float32", [-1, -1]),  # (G, I)
    "box_known": ("float32", [-1, -1]),  # (P, K)
    "box_offsets": ("int32", [-1]),  # (2): 0, P + E
    "box_target_offsets": ("int32", [-1]),  # (2): 0, G
    "box_seen": ("int32", [-1]),  # (P + E + G)
    "box_time": ("int64", [-1]),  # (P + E + G)
    "box_new": ("int32", [-1]),  # (E + G): P and up
    "box_asked": ("int32", [-1]),  # (G): E and up
}


@dataclass(frozen=True)
class Events:
    """Events of a user, in the order of time. n = events."""

    features: np.ndarray  # (n, I) float32
    labels: np.ndarray  # (n, 1) float32
    times: np.ndarray  # (n) int64

    def __len__(self) -> int:
        return len(self.times)

    def then(self, more: Events) -> Events:
        return Events(
            np.concatenate([self.features, more.features]),
            np.concatenate([self.labels, more.labels]),
            np.concatenate([self.times, more.times]),
        )

    def between(self, begin: int, end: int | None = None) -> Events:
        """A copy, so that what is left out takes no memory."""
        part = slice(begin, end)
        return Events(*(a[part].copy() for a in (self.features, self.labels, self.times)))


def known_width(config: Config) -> int:
    """K."""
    model: Any = config.model
    return int(2 * model.layers * model.heads * model.head_dim)


def build(
    config: Config, model: Any, width: int, factor: np.ndarray, shift: np.ndarray
) -> tuple[list[Any], list[Any]]:
    """Build the program in the current one.

    Args:
        model: `paddlebox.models.hstu.HstuOverUsers`.
        width: I.
        factor, shift: (1, I); the model reads (result of a lookup - shift) * factor.

    Returns: the inputs and the outputs, which are predictions (G, 1) and keys and values (E + G,
        K).
    """
    widths = {"box_events": width, "box_candidates": width, "box_known": known_width(config)}
    fed = {
        name: paddle.static.data(name, [-1, widths[name]] if name in widths else shape, dtype)
        for name, (dtype, shape) in _INPUTS.items()
    }
    events, candidates = (
        (fed[name] - paddle.assign(shift)) * paddle.assign(factor)
        for name in ("box_events", "box_candidates")
    )
    tokens = Continued(
        Tokens(
            offsets=fed["box_offsets"],
            target_offsets=fed["box_target_offsets"],
            seen=fed["box_seen"],
            times=fed["box_time"],
        ),
        fed["box_known"],
        fed["box_new"],
    )
    logits = model.continued(events, fed["box_label"], candidates, tokens, fed["box_asked"])
    return list(fed.values()), [paddle.nn.functional.sigmoid(logits), tokens.made()]


class UserProgram:
    """Runs a frozen program on the CPU.

    It is thread-safe: each of the threads that run at the same time has a Paddle predictor of its
    own.

    Args:
        program, parameters: as Paddle saves them.
        threads: threads of one prediction.
    """

    def __init__(self, program: bytes, parameters: bytes, threads: int) -> None:
        self._frozen, self._threads = (program, parameters), threads
        self._idle = [self._new()]  # pop and append of a list are atomic, so there is no lock

    def _new(self) -> Any:
        return create_predictor(*self._frozen, self._threads)

    def run(
        self,
        times: np.ndarray,
        known: np.ndarray,
        new: Events,
        candidates: np.ndarray,
        candidate_times: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score candidates.

        Args:
            times: (P) int64, of the known events.
            known: (P, K) float32, from earlier runs.
            new: the events after them.
            candidates: (G, I) float32.
            candidate_times: (G) int64.

        Returns: probabilities (G) float32, and the keys and values of the new events, (E, K).
        """
        before, events, asked = len(times), len(times) + len(new), len(candidates)
        # No result of a known event is used, so it sees nothing.
        seen = [np.zeros(before), np.arange(before, events), np.full(asked, events)]
        found = self._found(
            {
                "box_events": new.features,
                "box_label": new.labels,
                "box_candidates": candidates,
                "box_known": known,
                "box_offsets": np.array([0, events], np.int32),
                "box_target_offsets": np.array([0, asked], np.int32),
                "box_seen": np.concatenate(seen).astype(np.int32),
                "box_time": np.concatenate([times, new.times, candidate_times]),
                "box_new": np.arange(before, events + asked, dtype=np.int32),
                "box_asked": np.arange(len(new), len(new) + asked, dtype=np.int32),
            }
        )
        return found[0].reshape(-1), found[1][: len(new)]

    def _found(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        try:
            predictor = self._idle.pop()
        except IndexError:
            predictor = self._new()
        try:
            for name, array in feed.items():
                predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(array))
            predictor.run()
            names = predictor.get_output_names()
            return [predictor.get_output_handle(name).copy_to_cpu() for name in names]
        finally:
            self._idle.append(predictor)
