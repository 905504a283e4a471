"""A version of several ranks is opened by as many ranks, and an error says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlebox.errors import ConfigError
from paddlebox.store.group import ONE_RANK
from paddlebox.store.record import VersionRecord
from paddlebox.training.evaluation import check_same_ranks


def record(**cursor: int) -> VersionRecord:
    return VersionRecord(1, 0, [], {}, 1, cursor=cursor)


def test_one_process_does_not_open_a_part_of_a_model() -> None:
    check_same_ranks(Path("r"), record(), ONE_RANK)
    with pytest.raises(ConfigError, match=r"per_node 3 .*one rank only: see docs"):
        check_same_ranks(Path("r"), record(ranks=3), ONE_RANK)
