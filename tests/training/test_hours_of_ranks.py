"""What several ranks know of hours that come: what the first one found, and nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.dates import moment, zone_of
from paddlebox.data.sharing import share_files
from paddlebox.ranks import World
from paddlebox.training.hours import Hourly
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumeRequest
from tests.conftest import PATIENCE_S
from tests.training.test_hours import SLOTS
from tests.training.test_hours import World as Logs

RANKS = 3


class Threads(World):
    """Ranks that are threads of this process, each with its own clock."""

    def __init__(self, rank: int, met: threading.Barrier, said: list[Any]) -> None:
        super().__init__(rank, RANKS)
        self._met, self._said = met, said

    def gather(self, what: str, mine: Any) -> list[Any]:
        self._said[self.rank] = mine
        self._met.wait(PATIENCE_S)
        found = list(self._said)
        self._met.wait(PATIENCE_S)  # before anyone says the next
        return found


def blind(_: Any = None) -> float:
    raise AssertionError("only the first rank looks at clocks, and sleeps")


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    logs = Logs(tmp_path)
    logs.now = moment("2024010100", zone_of("UTC")).timestamp()
    return logs


def on_all(logs: Logs, act: Callable[[Hourly], Any], **fields: Any) -> list[Any]:
    """What `act` gives on each rank."""
    met, said = threading.Barrier(RANKS), [None] * RANKS
    clocks = {"clock": lambda: logs.now, "steady": lambda: logs.steady, "sleep": logs.sleep}

    def run(rank: int) -> Any:
        own = clocks if rank == 0 else dict.fromkeys(clocks, blind)
        try:
            ranks = Threads(rank, met, said)
            return act(Hourly(logs.config(**fields), ranks, **own))
        except BaseException:
            met.abort()
            raise

    with ThreadPoolExecutor(RANKS) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(RANKS)]]


def hours(hourly: Hourly) -> list[PlannedPass]:
    return [*iter(hourly.wait, None)]


def test_all_ranks_take_the_same_hours_and_know_of_the_same_missing_ones(logs: Logs) -> None:
    for hour in (0, 2, 3):
        logs.write(f"20240101/{hour:02}")
    logs.at_hour("2024010104")
    logs.events = [(1500.0, lambda: logs.write("20240101/04"))]
    first, *others = on_all(logs, hours, until_hour="2024010104", missing_hour="skip")
    assert [planned.hour[11:13] for planned in first] == ["00", "02", "03", "04"]
    assert first[1].missing == ["2024-01-01T01:00+00:00"]
    assert others == [first] * (RANKS - 1)


def test_a_poll_that_finds_nothing_reaches_all_ranks_and_decides_nothing(logs: Logs) -> None:
    logs.write("20240101/00")
    assert on_all(logs, lambda hourly: hourly.ready()) == [None] * RANKS
    told: list[list[str]] = [[] for _ in range(RANKS)]

    def wait(hourly: Hourly) -> int:
        hourly.on_wait = told[hourly._world.rank].append
        planned = hourly.wait()
        assert planned is not None
        return planned.number

    assert on_all(logs, wait) == [1] * RANKS
    assert len(told[0]) >= 360  # an hour, every 10 s
    assert told[1] == told[2] == told[0]


def test_files_are_shared_by_the_sizes_that_the_first_rank_saw(logs: Logs) -> None:
    written = [logs.write("20240101/00", "x" * 10 * n, f"part-{n}.txt") for n in range(1, 7)]
    logs.at_hour("2024010101")
    found = on_all(logs, lambda hourly: hourly.ready())
    shares = []
    for rank, planned in enumerate(found):
        written[rank].write_text("written again, after the first rank had looked" * 9)
        shares.append(share_files(planned.files, planned.sizes, RANKS)[0][rank])
    assert sorted(file for share in shares for file in share) == sorted(map(str, written))
    assert [len(share) for share in shares] == [2, 2, 2]


def test_an_hour_with_fewer_files_than_ranks_is_warned_of_once(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    logs.write("20240101/00")
    logs.write("20240101/01")
    logs.at_hour("2024010102")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        on_all(logs, hours, until_hour="2024010101", share="files")
    (said,) = caplog.messages
    assert said.startswith("hour 2024-01-01T00:00+00:00 has 1 files, and there are 3 ranks: ")


def test_skipped_files_are_those_that_the_first_rank_sees(logs: Logs, tmp_path: Path) -> None:
    for hour in range(2):
        logs.write(f"20240101/{hour:02}")
    logs.at_hour("2024010102")

    def skip(hourly: Hourly) -> dict[str, int]:
        run_dir = tmp_path / str(hourly._world.rank)
        return hourly.resume(
            ResumeRequest(run_dir, logs.config(), SLOTS, skip=["20240101/01/*"])
        ).skipped

    first, *others = on_all(logs, skip)
    assert list(first) == [f"{logs.logs}/20240101/01/part-0.txt"]
    assert others == [first] * (RANKS - 1)
