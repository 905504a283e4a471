"""Chooses the dense parameters that a new model takes from a trained one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Prefix of Paddle's variables that hold the dense learning rate. It comes from the new config.
_RATE = "learning_rate_"


@dataclass
class CarriedDense:
    """The dense state of a new run, and where its tensors come from."""

    state: dict[str, np.ndarray]
    carried: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # (name, shape)
    # (name, shape, why)
    fresh: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    dropped: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """The section "dense" of init.json."""
        return {
            "carried": [{"name": name, "shape": list(shape)} for name, shape in self.carried],
            **{
                kind: [{"name": name, "shape": list(shape), "why": why} for name, shape, why in of]
                for kind, of in (("fresh", self.fresh), ("dropped", self.dropped))
            },
        }


def carry_dense(
    old: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], same_optimizer: bool
) -> CarriedDense:
    """Combine the dense state of a trained model with that of a new one.

    A parameter is carried if its name, shape and dtype are equal. The optimizer's state of a
    parameter is carried with the parameter if both runs use the same type of optimizer. The name of
    such a state begins with the name of its parameter.

    Args:
        old: the state of the source.
        fresh: the initial state of the new model.
        same_optimizer: whether both runs use the same type of optimizer.
    """
    names = {*old, *fresh}
    out = CarriedDense(dict(fresh))
    for name in sorted(names):
        owner = _owner(name, names)
        before, now = old.get(name), fresh.get(name)
        why = ""
        if name.startswith(_RATE):
            why = "the config's"
        elif before is None:
            why = "not in the source"
        elif now is None:
            why = "not in the model"
        elif owner is not None and not same_optimizer:
            why = "of another optimizer"
        elif owner is not None and not _same(old.get(owner), fresh.get(owner)):
            why = f"{owner} is not carried"
        elif not _same(before, now):
            why = f"was {before.dtype} {list(before.shape)}"
        if not why:
            assert before is not None
            out.state[name] = before
            out.carried.append((name, before.shape))
        elif now is not None:
            out.fresh.append((name, now.shape, why))
        else:
            assert before is not None
            out.dropped.append((name, before.shape, why))
    return out


def _owner(name: str, names: set[str]) -> str | None:
    """The parameter to which an optimizer state of this name belongs, or None.

    It is the longest other name that this name begins with.
    """
    parts = name.split("_")
    prefixes = ("_".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    return next((prefix for prefix in prefixes if prefix in names), None)


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype
