"""Detects files that a run trains more than once.

The rows already hold the clicks of the first training, which reveal the labels of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paddlebox.train.plan import PlannedPass

log = logging.getLogger("paddlebox")


def repeats(passes: Sequence[PlannedPass]) -> dict[int, int]:
    """Passes that repeat a file: number of the pass -> number of the first pass with the file."""
    first: dict[str, int] = {}
    found: dict[int, int] = {}
    for planned in passes:
        seen = [first[file] for file in planned.files if file in first]
        if seen:
            found[planned.number] = min(seen)
        for file in planned.files:
            first.setdefault(file, planned.number)
        if len({*planned.files}) < len(planned.files):
            found.setdefault(planned.number, planned.number)
    return found


def warn(passes: Sequence[PlannedPass], done: int) -> None:
    """Log a warning if passes that are not trained yet repeat files.

    Args:
        passes: all passes of the run.
        done: how many of them are trained; they cause no warning.
    """
    repeated = repeats(passes)
    left = [number for number in repeated if number > done]
    if not left:
        return
    dates = {planned.number: planned.date for planned in passes}
    date = dates[left[0]]
    log.warning(
        "pass %d%s trains files again that pass %d trained%s: the rows already hold their clicks, "
        "so the training metrics are too good and the model may memorise labels: judge it by "
        "data.test_files, or train each file once (trainer.epochs: 1, --skip-files)",
        left[0],
        f" ({date})" if date else "",
        repeated[left[0]],
        f", and so do {len(left) - 1} more passes" if len(left) > 1 else "",
    )
