"""Whose a dense state is, where two programs train: update's by the names that a run of one program
gives, join's behind "join/"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from paddlebox.config.schema import Phase

T = TypeVar("T")
_PREFIX = {Phase.UPDATE: "", Phase.JOIN: "join/"}


def stored_names(phase: Phase, state: Mapping[str, T]) -> dict[str, T]:
    """The state of a phase's program as a commit has it."""
    return {f"{_PREFIX[phase]}{name}": value for name, value in state.items()}


def state_of(phase: Phase, state: Mapping[str, T]) -> dict[str, T]:
    """What a phase's program has of a commit's dense state."""
    join = _PREFIX[Phase.JOIN]
    if phase is Phase.JOIN:
        return {n.removeprefix(join): value for n, value in state.items() if n.startswith(join)}
    return {name: value for name, value in state.items() if not name.startswith(join)}
