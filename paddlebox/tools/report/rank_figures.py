"""What each rank of a run did, and which one the others waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from paddlebox.tools.report import text
from paddlebox.tools.report.figures import (
    TONES,
    Figure,
    Series,
    bars,
    chosen,
    curves,
    missing,
    table,
)
from paddlebox.tools.report.ranks import of_rank, waited, waited_for
from paddlebox.tools.report.run import Line, Run, number

_MOST_SHOWN = 16  # ranks of a figure; the table has all
_OLDER = "the lines of the passes are of an older paddlebox, which did not tell what each rank did"
Of = Callable[[Line, int], float | None]


def rank_figures(run: Run) -> list[Figure]:
    return [_each(run), _samples(run), _sent(run), _waits(run), _waited_for(run)]


def _of_each(run: Run, of: Of) -> list[Series]:
    return [
        Series(f"rank {rank}", [of(line, rank) for line in run.lines], rank % TONES + 1)
        for rank in range(min(run.size, _MOST_SHOWN))
    ]


def _by_rank(
    run: Run,
    title: str,
    note: str,
    of: Of,
    draw: Callable[..., str],
    value: Callable[[float | None], str],
    why: str = _OLDER,
) -> Figure:
    series = _of_each(run, of)
    if not any(v is not None for s in series for v in s.values):
        return missing(title, why)
    passes = [line["pass"] for line in run.lines]
    rows = [
        [str(passes[at]), *(value(s.values[at]) for s in series)] for at in chosen(len(passes), 400)
    ]
    if run.size > _MOST_SHOWN:
        note += f" Of {run.size} ranks the first {_MOST_SHOWN}."
    headers = ["pass", *(s.name for s in series)]
    return Figure(title, note, draw(passes, series, value), headers, rows)


def _samples(run: Run) -> Figure:
    return _by_rank(
        run,
        "Samples a rank",
        "A pass's files are shared out by size, each whole to one rank.",
        lambda line, rank: of_rank(line, rank, "samples"),
        bars,
        text.count,
    )


def _waits(run: Run) -> Figure:
    return _by_rank(
        run,
        "Waiting for other ranks",
        "Seconds of a pass in which a rank's steps waited for ranks of its host: the one with the "
        "least kept the others waiting. Between hosts waiting cannot be told from sending.",
        waited,
        curves,
        text.seconds,
    )


def _waited_for(run: Run) -> Figure:
    found = {line["pass"]: waited_for(line, run.size) for line in run.lines}

    def of(line: Line, rank: int) -> float | None:
        slow = found[line["pass"]]
        return slow[1] if slow is not None and slow[0] == rank else None

    return _by_rank(
        run,
        "Which rank was waited for",
        "By how many seconds of a pass the others waited longer than the rank that is named.",
        of,
        bars,
        text.seconds,
        "no rank waited for another of its host",
    )


def _sent(run: Run) -> Figure:
    title = "Bytes that ranks sent"
    kinds = dict.fromkeys(
        kind for line in run.lines for kind in (line.get("ranks") or {}).get("sent_bytes", {})
    )
    if not kinds:
        return missing(title, "no pass has ended yet")
    series = [
        Series(kind, [number(line, "ranks", "sent_bytes", kind) for line in run.lines], tone)
        for tone, kind in enumerate(kinds, 1)
    ]
    passes = [line["pass"] for line in run.lines]
    rows = [
        [str(passes[at]), *(text.size(s.values[at]) for s in series)]
        for at in chosen(len(passes), 400)
    ]
    last = number(run.lines[-1], "ranks", "bytes_per_sample")
    return Figure(
        title,
        f"Of all ranks, by what it was. In the last pass {text.size(last)} a sample.",
        bars(passes, series, text.size),
        ["pass", *kinds],
        rows,
    )


def _each(run: Run) -> Figure:
    slow = [found[0] for line in run.lines if (found := waited_for(line, run.size)) is not None]
    times = Counter(slow)

    def total(of: Of, rank: int) -> float | None:
        known = [v for line in run.lines if (v := of(line, rank)) is not None]
        return sum(known) if known else None

    rows = []
    for rank in range(run.size):
        own = run.ranks.get(rank)
        rows.append(
            [
                str(rank),
                text.count(total(lambda line, r: of_rank(line, r, "samples"), rank)),
                text.size(total(lambda line, r: of_rank(line, r, "sent_bytes"), rank)),
                text.seconds(total(waited, rank)),
                f"{times[rank]} of {len(run.lines)}" if slow else text.NONE,
                text.count(_own(run, rank)),
                text.size(own.disk_bytes or None) if own is not None else text.NONE,
                str(own.environment.get("cpu", text.NONE)) if own is not None else text.NONE,
            ]
        )
    headers = ["rank", "samples", "sent", "waited", "passes waited for", "live rows", "disk"]
    note = "Over all passes; rows and disk as of now. " + run.missing.get("ranks", "")
    body = f"<div class=wrap>{table([*headers, 'processor'], rows)}</div>"
    return Figure("Each rank", note.strip(), body, wide=True)


def _own(run: Run, rank: int) -> float | None:
    """Live rows of a rank; of the run's own store those of all are known."""
    own = run.ranks.get(rank)
    return number(own.store, "live_rows") if own is not None else None
