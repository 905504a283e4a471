"""When a run saves by itself."""

from __future__ import annotations

import time
from typing import Any

from paddlebox.config.schema import BaseEvery, SaveConfig
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.saves.saver import Saver


def save_due(saver: Saver, config: SaveConfig) -> dict[str, Any] | None:
    """Writes the save that is due after the last pass: a base, else a delta. What was
    done is read from the donefiles, so a run that is taken up again goes on with its chain.

    Returns: name, kind, rows, deleted and seconds of the save; None where none was due.

    Raises: as `Saver.base`.
    """
    started = time.perf_counter()
    save = saver.of_last_pass()  # by a run that was killed before it could say so
    last = saver.last()
    base, delta = f"{saver.date}/base", f"{saver.date}/delta-{saver.pass_number}"
    first = last is None or (config.base_every is BaseEvery.DATE and not saver.is_done(BASE, base))
    if save is not None:
        pass
    elif first:
        save = saver.base(base)
    elif (
        config.delta_every
        and saver.pass_number % config.delta_every == 0
        and not saver.is_done(DELTA, delta)
    ):
        save = saver.delta(delta)
    else:
        return None
    return {
        "name": save.name,
        "kind": save.meta["kind"],
        "rows": save.rows,
        "deleted": save.deletions,
        "seconds": time.perf_counter() - started,
    }
