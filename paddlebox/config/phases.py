"""Keys of `phases`, two programs over one table, and whose a dense state is (docs/phases.md)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from pydantic import Field

from paddlebox.config.section import Section
from paddlebox.config.trainer import OptimizerConfig
from paddlebox.config.zoo import AnyModelConfig

T = TypeVar("T")


class Phase(StrEnum):
    JOIN = "join"
    UPDATE = "update"


class PhaseConfig(Section):
    """One of the two programs that train a pass."""

    model: AnyModelConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)


# Update's state has the names that a run of one program gives.
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
