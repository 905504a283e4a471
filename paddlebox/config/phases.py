"""Keys of `phases`, two programs over one table, and the names of their dense states."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from pydantic import Field

from paddlebox.config.models import AnyModelConfig
from paddlebox.config.section import Section
from paddlebox.config.trainer import OptimizerConfig

T = TypeVar("T")


class Phase(StrEnum):
    JOIN = "join"
    UPDATE = "update"


class PhaseConfig(Section):
    """One of the two programs that train a pass."""

    model: AnyModelConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)


# The dense state of update has the same names as in a run with one program.
_PREFIX = {Phase.UPDATE: "", Phase.JOIN: "join/"}


def stored_names(phase: Phase, state: Mapping[str, T]) -> dict[str, T]:
    """The dense state of a phase, under the names that a commit uses."""
    return {f"{_PREFIX[phase]}{name}": value for name, value in state.items()}


def state_of(phase: Phase, state: Mapping[str, T]) -> dict[str, T]:
    """The dense state of a phase, taken from the dense state of a commit."""
    join = _PREFIX[Phase.JOIN]
    if phase is Phase.JOIN:
        return {n.removeprefix(join): value for n, value in state.items() if n.startswith(join)}
    return {name: value for name, value in state.items() if not name.startswith(join)}
