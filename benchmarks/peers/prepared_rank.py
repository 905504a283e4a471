"""tools/train.py as a rank of ranks.py whose passes are packed into batches before the first step,
as the batches of the peers are made beforehand.

The stage "train" of a pass begins behind its packing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from paddlebox.launch import cpu
from paddlebox.launch.cli import train_main


def prepare_batches() -> None:
    """Changes the feeder. It imports Paddle."""
    from paddlebox.data import pass_feeder, pipeline

    class Prepared(pipeline.InOrder[Any, Any]):
        """Does all work in the thread that takes the results, before it takes the first."""

        def __init__(
            self, source: Iterator[Any], work: Callable[[Any], Any], threads: Any, **options: Any
        ) -> None:
            super().__init__(iter(()), work, threads, **options)
            self._all = iter([work(item) for item in source])

        def __next__(self) -> Any:
            return next(self._all)

    vars(pass_feeder)["InOrder"] = Prepared


def apply_and_prepare(*settings: Any) -> list[str]:
    lines = apply(*settings)
    prepare_batches()
    return lines


apply = cpu.apply

if __name__ == "__main__":
    cpu.apply = apply_and_prepare  # type: ignore[assignment]
    sys.exit(train_main())
