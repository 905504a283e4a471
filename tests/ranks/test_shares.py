"""What every rank finds alike: which keys are whose, which files it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddlebox.data.sharing import share_files, sizes_of
from paddlebox.errors import ConfigError
from paddlebox.ranks.shared_tables import range_starts
from paddlebox.ranks.world import World
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.training.opening import warn_of_idle


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_ranges_begin_at_zero_and_share_the_hash_order_evenly(size: int) -> None:
    starts = [int(start) for start in range_starts(size)]
    assert starts[0] == 0
    widths = np.diff(np.array([*starts, 1 << 64], object))
    assert max(widths) - min(widths) <= 1


def test_files_are_shared_by_size_each_to_one_rank_and_in_their_order(tmp_path: Path) -> None:
    sizes = [50, 10, 10, 30, 0]
    files = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"part-{number}"
        path.write_bytes(b"x" * size)
        files.append(str(path))
    shares, loads = share_files(files, sizes_of(files, ONE_RANK), 2)
    assert loads == [51, 50]
    assert sorted([*shares[0], *shares[1]]) == files
    assert all(share == sorted(share) for share in shares)
    assert shares[1] == files[1:4]  # 50 bytes, as the other has in one file; an empty one is left


def test_passes_that_leave_a_rank_without_a_file_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    passes = [["a", "b"], ["c"], ["d", "e", "f"]]
    for world in (World(1, 2), Group()):
        warn_of_idle(passes, world)
    warn_of_idle(passes[:1], World(0, 2))
    assert not caplog.records
    warn_of_idle(passes, World(0, 2))
    (said,) = caplog.messages
    assert said.startswith("1 of 3 passes have fewer files than the 2 ranks (the smallest has 1)")
    assert "data.files_per_pass" in said


def test_a_single_rank_waits_for_no_other() -> None:
    world = Group()
    world.wait("anything")
    assert world.gather("anything", "mine") == ["mine"]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PADDLE_TRAINERS_NUM": "two"}, "expected integers"),
        ({"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "2"}, "expected a lower rank"),
        ({"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "1"}, "PADDLE_MASTER"),
    ],
)
def test_an_environment_that_no_launcher_made_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name in ("PADDLE_TRAINER_ID", "PADDLE_MASTER", "PADDLE_CURRENT_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        World.join()
