"""Writes the saves that the config schedules (`save`), and copies them, while passes train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paddlebox.config import Config
from paddlebox.saves.remote import SaveCopier
from paddlebox.saves.saver import BackgroundSaves, Saver
from paddlebox.store.table_set import TableSet
from paddlebox.train.hooks.hook import Hook, Line
from paddlebox.train.plan import PlannedPass


class Save(Hook):
    """Writes the saves of a run.

    Args:
        config: the config of the run.
        table: the tables to save.
        saved: called after each save, in the thread that wrote it.
    """

    def __init__(self, config: Config, table: TableSet, saved: Callable[[], None]) -> None:
        extra = {
            "slots.yaml": Path(config.data.slots).read_bytes(),
            "config.json": config.canonical_json().encode(),
        }
        saver = Saver(table, config.save.out, extra=extra)
        self._heartbeat = table.world.heartbeat
        copies = config.save.copy_to and table.world.rank == 0
        self._copier = SaveCopier(config.save.out, config.save.copy_to) if copies else None

        def done() -> None:
            saved()
            if self._copier is not None:
                self._copier.offer()

        self._saves = BackgroundSaves(saver, config.save, done)
        if self._copier is not None:
            self._copier.offer()  # what an earlier, killed run did not copy

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if not passes:
            return
        due = self._saves.due()  # an earlier, killed run may not have written it
        if line is not None:
            line["save"] = due

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        line["save"] = self._saves.due(planned.number, planned.date)

    def end(self) -> None:
        self._saves.finish()
        if self._copier is not None:
            self._copier.finish(self._heartbeat)

    def close(self, error: BaseException | None) -> None:
        try:
            self._saves.close()
        finally:
            if self._copier is not None:
                self._copier.close()
