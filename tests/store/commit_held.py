"""Commits that stand still at a chosen point until they are let go, so that what is done beside
them is done beside them whatever the machine's pace."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from paddlebox.store.tiered_table import TieredTable

#: Before the rows are written, the version is made, and the rows are given back to MEM.
POINTS = ("write_frozen", "record", "publish")


class _Before:
    """What it is given, with something that is done before one of its calls."""

    def __init__(self, of: Any, name: str, act: Callable[[], None]) -> None:
        self._of, self._name, self._act = of, name, act

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name != self._name:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._act()
            return found(*arguments, **named)

        return call


def before_point(table: TieredTable, point: str, act: Callable[[], None]) -> None:
    """Calls act, on the thread that commits, whenever a commit of this table comes to the point."""
    if point == "record":
        record = table.versions.record

        def of_pass(kind: str, **fields: Any) -> Any:
            if kind == "pass":  # merges make versions too, on their own thread
                act()
            return record(kind, **fields)

        table.versions.record = of_pass  # type: ignore[method-assign]
    else:
        table.native = _Before(table.native, point, act)


class Held:
    """Holds the commits of a table at a point until `let_go`; a fault that is set then is raised
    there."""

    def __init__(self, table: TieredTable, point: str) -> None:
        self.reached, self._go = Event(), Event()
        self.fault: BaseException | None = None
        before_point(table, point, self._hold)

    def _hold(self) -> None:
        self.reached.set()
        assert self._go.wait(60), "this commit was never released"
        if self.fault is not None:
            raise self.fault

    def let_go(self, fault: BaseException | None = None) -> None:
        self.fault = fault
        self._go.set()
