"""Figures as HTML, and the page around them: one file, without references to others.

Marks are inline SVG and text is HTML, so that both keep their shape at any width. The SVG of a plot
is stretched to its box. Strokes and dots do not scale: a dot is a line of length 0 with round ends.
Text is placed around the SVG, in per cent.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from paddlebox import __version__
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.store.files import store_errors
from paddlebox.tools.report import text
from paddlebox.tools.report.text import NONE, esc

Format = Callable[[float | None], str]
Rows = Sequence[Sequence[str]]

MAX_POINTS = 400  # points of a curve
MAX_BARS = 120
_MAX_DOTS = 40  # a curve with more points has no dots
_WIDEST_BAR = 160  # of 1000
TONES = 8  # colours in page.css
# The page loads nothing, even if a name in the data contains HTML.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Series:
    """A curve, or one part of each bar."""

    name: str
    values: Sequence[float | None]  # one for each x
    tone: int  # 1 to TONES
    dashed: bool = False
    fine: bool = False  # a thin curve without dots


@dataclass(frozen=True)
class Figure:
    """A figure with a title and a note. `body` is HTML; headers and rows are its table view."""

    title: str
    note: str
    body: str
    headers: Sequence[str] = ()
    rows: Rows = ()
    wide: bool = False

    def html(self) -> str:
        shown = table(self.headers, self.rows)
        data = f"<details><summary>Table</summary>{shown}</details>" if self.rows else ""
        return (
            f"<figure{' class=wide' if self.wide else ''}><figcaption><h3>{esc(self.title)}</h3>"
            f"<p>{esc(self.note)}</p></figcaption>{self.body}{data}</figure>"
        )


def missing(title: str, why: str) -> Figure:
    """A placeholder that says why there is no figure."""
    return Figure(title, "", f"<p class=missing>{esc(why)}</p>")


def table(headers: Sequence[str], rows: Rows, *, left: int = 1, wrap: bool = False) -> str:
    """An HTML table. left: the number of columns with text; the others are aligned as numbers.
    wrap: whether long texts are broken."""

    def cells(tag: str, values: Sequence[str]) -> str:
        number = f"<{tag} class=n>", f"<{tag}>"
        return "".join(f"{number[at < left]}{esc(v)}</{tag[:2]}>" for at, v in enumerate(values))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th scope=col', headers)}</tr></thead>"
    whole = f"<div class=scroll><table>{head}<tbody>{body}</tbody></table></div>"
    return f"<div class=wrap>{whole}</div>" if wrap else whole


def chosen(length: int, most: int) -> list[int]:
    """At most `most` indices below length, evenly spread, with the first and the last."""
    if length <= most:
        return list(range(length))
    return sorted({round(at * (length - 1) / (most - 1)) for at in range(most)})


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers in [low, high], in steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def byte_ticks(low: float, high: float) -> list[float]:
    """Numbers in [low, high] that are round in the binary unit of `high`."""
    unit = 1024.0 ** math.floor(math.log(max(high, 1), 1024))
    return [at * unit for at in ticks(low / unit, high / unit)]


def distinct(values: Sequence[float], value: Format) -> list[str]:
    """The labels of ticks, which differ: if `value` has too few digits for that, with more."""
    labels = [value(v) for v in values]
    if len({*labels}) == len(labels):
        return labels
    scale, unit = text.unit(max(map(abs, values)), value)
    step = min(after - before for before, after in itertools.pairwise(values)) / scale
    digits = max(0, math.ceil(-math.log10(step) - 1e-9))
    return [f"{v / scale:,.{digits}f}{unit}" for v in values]


def _labels(side: str, places: Iterable[tuple[float, str]]) -> str:
    return "".join(f'<b style="{side}:{at:.2f}%">{esc(name)}</b>' for at, name in places)


def _hit(left: float, width: float, tip: str) -> str:
    """A part of a plot with a tooltip. left, width: in per cent."""
    return f'<i class=hit style="left:{left:.2f}%;width:{width:.2f}%" data-tip="{tip}"></i>'


def legend(series: Sequence[Series], named: bool = False) -> str:
    """Names and tones; empty for one series that the title names, unless `named`."""
    items = [
        f'<li><i class="key t{s.tone}{" dash" if s.dashed else ""}{" fine" if s.fine else ""}"></i>'
        f"{esc(s.name)}</li>"
        for s in series
    ]
    return f"<ul class=legend>{''.join(items)}</ul>" if len(items) > 1 or named else ""


@dataclass(frozen=True)
class _Axes:
    """Maps values to the 1000 by 1000 units of the SVG."""

    x: tuple[float, float]
    y: tuple[float, float]

    def left(self, x: float) -> float:
        return 1000 * (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)

    def top(self, y: float) -> float:
        return 1000 - 1000 * (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)

    def frame(
        self,
        marks: str,
        hits: str,
        x_ticks: Sequence[tuple[float, str]],
        y_format: Format,
        x_name: str,
    ) -> str:
        y_ticks = byte_ticks(*self.y) if y_format is text.size else ticks(*self.y)
        lines = "".join(f'<path class=grid d="M0 {self.top(y):.1f}H1000"/>' for y in y_ticks)
        places = (self.top(y) / 10 for y in y_ticks)
        left = _labels("top", zip(places, distinct(y_ticks, y_format), strict=True))
        below = _labels("left", ((self.left(x) / 10, name) for x, name in x_ticks))
        return (
            f"<div class=plot><div class=ys aria-hidden=true>{left}</div><div class=area>"
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio=none aria-hidden=true>{lines}{marks}'
            "</svg>"
            f"{hits}</div><div class=xs aria-hidden=true>{below}</div>"
            f"<div class=xname>{esc(x_name)}</div></div>"
        )


def _tip(head: str, parts: Sequence[tuple[str, str]]) -> str:
    return esc("\n".join([head, *(f"{name}\t{value}" for name, value in parts)]))


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.05 or 1
    return max(low - room, 0.0) if low >= 0 else low - room, high + room


def curves(
    xs: Sequence[float],
    series: Sequence[Series],
    value: Format,
    *,
    x_name: str = "pass",
    x_value: Format = lambda x: NONE if x is None else f"{x:g}",
    y_range: tuple[float, float] | None = None,
    joined: bool = False,
    diagonal: bool = False,
    named: bool = False,
) -> str:
    """Curves over one x axis. A missing value leaves a gap. joined: it leaves none, because each
    curve has points of its own. named: as in `legend`."""
    at = range(len(xs)) if joined else chosen(len(xs), MAX_POINTS)
    known = [v for s in series for i in at if (v := s.values[i]) is not None]
    if not known:
        return "<p class=missing>no values</p>"
    x_range = (min(xs), max(xs)) if len(xs) > 1 else (xs[0] - 0.5, xs[0] + 0.5)
    axes = _Axes((0.0, max(x_range[1], 1e-9)) if diagonal else x_range, y_range or _padded(known))
    marks = ""
    if diagonal:
        end = min(axes.x[1], axes.y[1])
        marks += f'<path class="ideal" d="M0 1000L{axes.left(end):.1f} {axes.top(end):.1f}"/>'
    for s in series:
        pen, path, dots = False, [], []
        for i in at:
            y = s.values[i]
            if y is None:
                pen = pen and joined
                continue
            place = f"{axes.left(xs[i]):.1f} {axes.top(y):.1f}"
            path.append(("L" if pen else "M") + place)
            dots.append(f"M{place}h0")
            pen = True
        style = f"{' dash' if s.dashed else ''}{' fine' if s.fine else ''}"
        marks += f'<path class="line s{s.tone}{style}" d="{"".join(path)}"/>'
        if len(dots) <= _MAX_DOTS and not s.fine:
            marks += f'<path class="dots s{s.tone}" d="{"".join(dots)}"/>'
    hits = ""
    places = [axes.left(xs[i]) for i in at]
    edges = [places[0], *((a + b) / 2 for a, b in itertools.pairwise(places)), places[-1]]
    if len(at) == 1:
        edges = [0, 1000]
    for i, (left, right) in zip(at, itertools.pairwise(edges), strict=True):
        shown = [(s.name, value(s.values[i])) for s in series if s.values[i] is not None]
        tip = _tip(f"{x_name} {x_value(xs[i])}", shown)
        hits += _hit(left / 10, (right - left) / 10, tip)
    whole = all(float(x).is_integer() for x in xs)
    x_ticks = [x for x in ticks(*axes.x, 6) if not whole or float(x).is_integer()] or [xs[0]]
    labels = list(zip(x_ticks, distinct(x_ticks, x_value), strict=True))
    return legend(series, named) + axes.frame(marks, hits, labels, value, x_name)


def bars(
    xs: Sequence[int],
    series: Sequence[Series],
    value: Format,
    *,
    x_name: str = "pass",
    as_shares: bool = False,
    named: bool = False,
) -> str:
    """Stacked bars. as_shares: all bars have the same height; tooltips also show the values. named:
    as in `legend`."""
    at = chosen(len(xs), MAX_BARS)
    totals = {i: sum(s.values[i] or 0 for s in series) for i in at}
    highest = 1.0 if as_shares else max(totals.values(), default=0) or 1.0
    axes = _Axes((0, len(at)), (0, highest * (1 if as_shares else 1.04)))
    marks = hits = ""
    width = 1000 / len(at)
    gap = max(min(width * 0.2, 8), width - _WIDEST_BAR)
    for place, i in enumerate(at):
        base = 0.0
        for s in series:
            part = s.values[i] or 0
            height = part / totals[i] if as_shares and totals[i] else part
            if height > 0:
                top, bottom = axes.top(base + height), axes.top(base)
                marks += (
                    f'<rect class=f{s.tone} x="{place * width + gap / 2:.2f}" y="{top:.2f}" '
                    f'width="{width - gap:.2f}" height="{bottom - top:.2f}"/>'
                )
            base += height
        parts = [(s.name, _of_total(s.values[i], totals[i], value)) for s in series]
        tip = _tip(f"{x_name} {xs[i]}", [*parts, ("together", value(totals[i]))])
        hits += _hit(place * 100 / len(at), 100 / len(at), tip)
    x_ticks = [(place + 0.5, str(xs[at[place]])) for place in chosen(len(at), 8)]
    y_format: Format = (lambda y: f"{100 * (y or 0):.0f} %") if as_shares else value
    return legend(series, named) + axes.frame(marks, hits, x_ticks, y_format, x_name)


def _of_total(value: float | None, total: float, shown: Format) -> str:
    return f"{shown(value)}  ({100 * (value or 0) / total:.1f} %)" if total else shown(value)


@dataclass(frozen=True)
class Span:
    """An activity in a lane, from begin to end."""

    lane: str
    begin: float
    end: float
    tone: int
    tip: str
    faint: bool = False  # for a wait


def gantt(lanes: Sequence[str], spans: Sequence[Span], value: Format) -> str:
    """Spans over time, one lane below the other. Time 0 is the begin of the first span."""
    if not spans:
        return "<p class=missing>no times</p>"
    start = min(span.begin for span in spans)
    length = max(span.end for span in spans) - start or 1e-9
    rows = ""
    for lane in lanes:
        marks = "".join(
            f'<i class="bar f{s.tone}{" faint" if s.faint else ""}" style="left:'
            f"{100 * (s.begin - start) / length:.3f}%;"
            f'width:{100 * (s.end - s.begin) / length:.3f}%" '
            f'data-tip="{esc(s.tip)}"></i>'
            for s in spans
            if s.lane == lane
        )
        rows += f"<div class=lane><b>{esc(lane)}</b><div>{marks}</div></div>"
    x_ticks = ticks(0, length, 6)
    places = (100 * x / length for x in x_ticks)
    below = _labels("left", zip(places, distinct(x_ticks, value), strict=True))
    return f"<div class=gantt>{rows}<div class=xs aria-hidden=true>{below}</div></div>"


@dataclass(frozen=True)
class Page:
    title: str
    about: str
    tiles: Sequence[tuple[str, str, str]]  # name, value, note
    sections: Mapping[str, Sequence[Figure]]  # by title
    state: str = ""
    reload_s: float = 0  # seconds between reloads; 0: none

    def html(self) -> str:
        own = files("paddlebox.tools.report")
        style, script = (own.joinpath(f"page.{kind}").read_text() for kind in ("css", "js"))
        pill = (
            f'<span class="pill {esc(self.state)}">{esc(self.state)}</span>' if self.state else ""
        )
        tiles = "".join(
            f"<div><span>{esc(name)}</span><strong>{esc(value)}</strong><em>{esc(note)}</em></div>"
            for name, value, note in self.tiles
        )
        links = body = ""
        for title, figures in self.sections.items():
            anchor = esc("-".join(title.lower().split()))
            links += f'<a href="#{anchor}">{esc(title)}</a>'
            body += (
                f'<section><h2 id="{anchor}">{esc(title)}</h2>'
                f"<div class=grid>{''.join(figure.html() for figure in figures)}</div></section>\n"
            )
        return (
            "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">'
            f"<title>{esc(self.title)}</title><style>{style}</style></head>\n"
            f'<body data-reload="{self.reload_s:g}">'
            f"<header><h1>{esc(self.title)}</h1>{pill}</header>"
            f"<p class=about>{esc(self.about)}</p><nav>{links}</nav>"
            f"<div class=tiles>{tiles}</div>\n{body}"
            f"<footer>Written {text.moment(time.time())}. paddlebox {esc(__version__)}</footer>"
            f"<div id=tip hidden></div><script>{script}</script></body></html>\n"
        )


def write_page(page: Page, path: AnyPath) -> None:
    """Write the page atomically, so that a browser never loads a part of it. Raises: StoreError if
    it cannot be written."""
    path = as_path(path, "path")
    temporary = path.with_name(f"{path.name}.tmp")
    with store_errors(str(path), "write the page"):
        temporary.write_text(page.html())
        os.replace(temporary, path)
