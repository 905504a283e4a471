"""Figures over the passes of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paddlebox.tools.report.figures import Figure, Format, Series, bars, chosen, curves, missing
from paddlebox.tools.report.run import Line, Run, number

NO_PASS = "no pass has ended yet"
_MOST_ROWS = 400  # of the table view

Value = Callable[[Line], float | None]
#: A curve, or a part of each bar: its name, its tone, and its value in a line of metrics.jsonl.
Part = tuple[str, int, Value]


def at(*path: str) -> Value:
    """The number at a path of a line."""
    return lambda line: number(line, *path)


def by_pass(
    run: Run,
    title: str,
    note: str,
    parts: Sequence[Part],
    value: Format,
    why: str = "",
    draw: Callable[..., str] = curves,
    **options: Any,
) -> Figure:
    """A figure over the passes of a run. Curves without values are left out.

    Args:
        why: the reason if there are no values; "": NO_PASS.
        draw: `curves` or `bars`.
        options: of `draw`.
    """
    passes = [line["pass"] for line in run.lines]
    series = [Series(name, [of(line) for line in run.lines], tone) for name, tone, of in parts]
    if draw is bars:
        shown = series if any(v for s in series for v in s.values) else []
    else:
        shown = [s for s in series if any(v is not None for v in s.values)]
    if not shown:
        return missing(title, why or NO_PASS)
    return over_passes(title, note, passes, shown, value, draw, **options)


def over_passes(
    title: str,
    note: str,
    passes: Sequence[int],
    series: Sequence[Series],
    value: Format,
    draw: Callable[..., str],
    **options: Any,
) -> Figure:
    """A figure with its table view. The values of the series are those of the passes."""
    rows = [
        [str(passes[i]), *(value(s.values[i]) for s in series)]
        for i in chosen(len(passes), _MOST_ROWS)
    ]
    headers = ["pass", *(s.name for s in series)]
    return Figure(title, note, draw(passes, series, value, **options), headers, rows)


def from_zero(run: Run, *path: str) -> tuple[float, float] | None:
    """A range of y from 0 to above the largest number at a path; None if all are 0."""
    most = max((number(line, *path) or 0 for line in run.lines), default=0)
    return (0.0, most * 1.06) if most else None
