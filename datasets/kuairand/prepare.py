#!/usr/bin/env python3
"""Makes CSV files of KuaiRand's logs, with the features of the user and the video in each row.

    python datasets/kuairand/prepare.py --folder data/kuairand/KuaiRand-Pure/data

The labels are the click, a long view and a like. Each log becomes one training file, with its rows
in their order. Rows of --test-from or later are for testing.

With --history N, rows have their time and the latest N videos that the user clicked before, the
latest first. The rows of a file are then in the order of users and times.
"""

from __future__ import annotations

import argparse
import csv
import sys
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import identity, open_text, refused, report, write_groups

LABELS = ("is_click", "long_view", "is_like")
OF_LOG = ("user_id", "video_id", "tab")
OF_USER = (
    *("user_active_degree", "is_lowactive_period", "is_live_streamer", "is_video_author"),
    *("follow_user_num_range", "fans_user_num_range", "friend_user_num_range"),
    *("register_days_range", *(f"onehot_feat{k}" for k in range(18))),
)
OF_VIDEO = ("author_id", "video_type", "upload_type", "music_id", "tag")
HEADER = ",".join(
    (*LABELS, *OF_LOG, "hour", "seconds", *OF_USER, *(f"video_{n}" for n in OF_VIDEO))
)


def lines_of(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yields the lines of a CSV file by column. Raises SystemExit if a column is missing, or a line
    lacks a cell of it."""
    with open_text(path) as file:
        reader = csv.DictReader(file)
        columns = [name.strip() for name in reader.fieldnames or ()]
        if missing := sorted(set(needed) - set(columns)):
            raise SystemExit(f"{path}: missing columns: {', '.join(missing)}")
        reader.fieldnames = columns
        for line in reader:
            if lacking := [name for name in needed if line[name] is None]:
                raise SystemExit(f"{path}, line {reader.line_num}: no {', '.join(lacking)}")
            yield line


def features(path: Path, key: str, names: tuple[str, ...]) -> dict[str, str]:
    """The CSV cells of each user or video. The tags of a video become the values of one cell."""
    return {
        line[key]: ",".join(line[n].replace(",", "|").replace('"', "") for n in names)
        for line in lines_of(path, (key, *names))
    }


class Clicks:
    """The videos that each user clicked, in the order of time."""

    def __init__(self, logs: list[Path]) -> None:
        needed = ("user_id", "video_id", "time_ms", "is_click")
        found = [
            (line["user_id"], int(line["time_ms"]), line["video_id"])
            for line in chain.from_iterable(lines_of(log, needed) for log in logs)
            if line["is_click"] == "1"
        ]
        found.sort(key=lambda one: one[:2])  # clicks of one time stay in the order of the logs
        self._of: dict[str, tuple[list[int], list[str]]] = {}
        for user, time, video in found:
            times, videos = self._of.setdefault(user, ([], []))
            times.append(time)
            videos.append(video)

    def before(self, user: str, time: int, most: int) -> list[str]:
        """The latest `most` videos that were clicked before a time, the latest first."""
        times, videos = self._of.get(user, ([], []))
        end = bisect_left(times, time)
        return videos[max(0, end - most) : end][::-1]


def rows_of(
    log: Path,
    users: dict[str, str],
    videos: dict[str, str],
    start: str,
    testing: bool,
    needed: tuple[str, ...] = (),
) -> Iterator[tuple[dict[str, str], str]]:
    """Yields the lines of the log that are before the date `start` or, if `testing`, on that date
    or later, and the CSV row of each.

    Args:
        needed: columns of the log that are needed beside those of the rows.
    """
    no_user, no_video = "," * (len(OF_USER) - 1), "," * (len(OF_VIDEO) - 1)
    needed = (*LABELS, *OF_LOG, "date", "hourmin", "duration_ms", *needed)
    for line in lines_of(log, needed):
        if (line["date"] >= start) != testing:
            continue
        hour = int(line["hourmin"]) // 100
        cells = [line[name] for name in (*LABELS, *OF_LOG)]
        cells += [str(hour), f"{float(line['duration_ms'] or 0) / 1000:.1f}"]
        cells += [users.get(line["user_id"], no_user), videos.get(line["video_id"], no_video)]
        yield line, ",".join(cells)


def with_histories(
    rows: Iterator[tuple[dict[str, str], str]], clicks: Clicks, most: int
) -> Iterator[str]:
    """Yields the rows with their time and history, in the order of users and times."""
    keyed = ((line["user_id"], int(line["time_ms"]), row) for line, row in rows)
    for user, time, row in sorted(keyed, key=lambda one: one[:2]):
        yield f"{row},{time},{'|'.join(clicks.before(user, time, most))}"


def only(folder: Path, pattern: str) -> Path:
    """The only file of the folder that matches. Raises SystemExit for none or several."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SystemExit(f"{folder}: expected one file {pattern}, found {names}")
    return found[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make CSV files of KuaiRand's logs.")
    parser.add_argument("--folder", type=Path, required=True, help="the publisher's data folder")
    parser.add_argument("--out", type=Path, default=Path("data/kuairand"), help="folder")
    parser.add_argument(
        "--test-from", default="20220507", help="rows of this date and later are for testing"
    )
    parser.add_argument(
        "--history", type=int, default=0, help="clicked videos of a history; 0: no histories"
    )
    options = parser.parse_args(arguments)
    if options.history < 0:
        parser.error(f"--history {options.history}: expected 0 or more")
    with refused(options.folder):
        logs = sorted(options.folder.glob("log_standard_*.csv*"))
        if not logs:
            raise SystemExit(f"{options.folder}: expected log_standard_*.csv, found none")
        # log_random_* is not used: its videos were shown at random, in another distribution.
        user_file = only(options.folder, "user_features_*.csv*")
        video_file = only(options.folder, "video_features_basic_*.csv*")
        made_of = {
            "inputs": [identity(path) for path in (*logs, user_file, video_file)],
            "test_from": options.test_from,
            **({"history": options.history} if options.history else {}),
        }
        users = features(user_file, "user_id", OF_USER)
        videos = features(video_file, "video_id", OF_VIDEO)
        clicks = Clicks(logs) if options.history else None

        def rows(log: Path, testing: bool) -> Iterator[str]:
            made = (log, users, videos, options.test_from, testing)
            if clicks is None:
                return (row for _, row in rows_of(*made))
            return with_histories(rows_of(*made, ("time_ms",)), clicks, options.history)

        groups = (
            (f"{name}-{number:03}.csv", rows(log, testing))
            for name, testing in (("train", False), ("test", True))
            for number, log in enumerate(logs)
        )
        header = f"{HEADER},time,history" if clicks is not None else HEADER
        report(options.out, write_groups(options.out, groups, header, made_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
