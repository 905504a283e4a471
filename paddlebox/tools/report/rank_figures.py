"""What each rank of a run did, and which rank the others waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from paddlebox.tools.report import text
from paddlebox.tools.report.by_pass import Part, at, by_pass
from paddlebox.tools.report.figures import TONES, Figure, Format, bars, curves, table
from paddlebox.tools.report.ranks import of_rank, waited, waited_for
from paddlebox.tools.report.run import Line, Run, number

_MOST_SHOWN = 16  # ranks in a figure; the table has all
_MISSING = "the passes have no figures of each rank"
Of = Callable[[Line, int], float | None]


def rank_figures(run: Run) -> list[Figure]:
    return [_each(run), _samples(run), _sent(run), _waits(run), _waited_for(run)]


def _by_rank(
    run: Run,
    title: str,
    note: str,
    of: Of,
    draw: Callable[..., str],
    value: Format,
    why: str = _MISSING,
) -> Figure:
    parts: list[Part] = [
        (f"rank {rank}", rank % TONES + 1, partial(lambda rank, line: of(line, rank), rank))
        for rank in range(min(run.size, _MOST_SHOWN))
    ]
    if run.size > _MOST_SHOWN:
        note += f" The first {_MOST_SHOWN} of {run.size} ranks."
    return by_pass(run, title, note, parts, value, why, draw)


def _samples(run: Run) -> Figure:
    return _by_rank(
        run,
        "Samples by rank",
        "The files of a pass are divided among the ranks by size. A file is never split.",
        lambda line, rank: of_rank(line, rank, "samples"),
        bars,
        text.count,
    )


def _waits(run: Run) -> Figure:
    return _by_rank(
        run,
        "Waiting for other ranks",
        "Seconds of a pass in which the steps of a rank waited for ranks of its host. The others "
        "waited for the rank that waited least. Waiting for ranks of other hosts is not shown, "
        "because it cannot be told apart from sending.",
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
        "The rank that others waited for",
        "How many seconds longer the others waited in a pass than this rank.",
        of,
        bars,
        text.seconds,
        "no rank waited for another of its host",
    )


def _sent(run: Run) -> Figure:
    kinds = dict.fromkeys(
        kind for line in run.lines for kind in (line.get("ranks") or {}).get("sent_bytes", {})
    )
    last = number(run.lines[-1], "ranks", "bytes_per_sample") if run.lines else None
    return by_pass(
        run,
        "Bytes that ranks sent",
        f"Of all ranks, by content. {text.size(last)} per sample in the last pass.",
        [(kind, tone, at("ranks", "sent_bytes", kind)) for tone, kind in enumerate(kinds, 1)],
        text.size,
        draw=bars,
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
                text.count(number(own.store, "live_rows") if own is not None else None),
                text.size(own.disk_bytes or None) if own is not None else text.NONE,
                str(own.environment.get("cpu", text.NONE)) if own is not None else text.NONE,
            ]
        )
    headers = ["rank", "samples", "sent", "waited", "passes waited for", "live rows", "disk"]
    note = "Over all passes; rows and disk are current. " + run.missing.get("ranks", "")
    body = f"<div class=wrap>{table([*headers, 'processor'], rows)}</div>"
    return Figure("Each rank", note.strip(), body, wide=True)
