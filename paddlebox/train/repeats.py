"""Files that a run trains a second time: what the rows know of the first tells the labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paddlebox.train.plan import PlannedPass

log = logging.getLogger("paddlebox")


def repeats(passes: Sequence[PlannedPass]) -> dict[int, int]:
    """Of passes that have a file of an earlier one: number -> number of the first such pass."""
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
    """One line of the log for what is still to be trained a second time.

    Args:
        done: passes that were trained before this start, which has nothing to say of them.
    """
    repeated = repeats(passes)
    left = [number for number in repeated if number > done]
    if not left:
        return
    dates = {planned.number: planned.date for planned in passes}
    date = dates[left[0]]
    log.warning(
        "pass %d%s trains files again that pass %d has%s: their clicks are in the rows, so its "
        "training metrics are too good and what it learns may be the labels by heart: judge it by "
        "data.test_files, or train each file once (trainer.epochs: 1, --skip-files)",
        left[0],
        f" ({date})" if date else "",
        repeated[left[0]],
        f", and so do {len(left) - 1} more passes" if len(left) > 1 else "",
    )
