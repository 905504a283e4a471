"""Averages of parameters in a dense state: `<name>_average` next to `<name>`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SUFFIX = "_average"
STEPS = "averaged_steps"  # int64, one value: the number of steps in the averages


def averaged(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A dense state for serving: averages replace the parameters that have one."""
    return {name: state.get(name + SUFFIX, value) for name, value in state.items()}
