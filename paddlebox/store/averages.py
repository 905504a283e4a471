"""How averages of parameters lie in a dense state: `<name>_average` beside `<name>`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SUFFIX = "_average"
STEPS = "averaged_steps"  # int64, one value: the steps that they are of


def averaged(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A dense state as it is to be served: averages in place of parameters, where there are any."""
    return {name: state.get(name + SUFFIX, value) for name, value in state.items()}
