"""Ranks whose rows are on a device each (hbm.place: gpu) end as those on the host: rows and dense
parameters to the bit. The device is the host here, so that dense bits are comparable at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddlebox.store.options import SWITCH
from tests.ranks.test_ranks import _passes, _train_each
from tests.support.marks import long

_GPU = {"hbm": {"place": "gpu"}}


def _both(
    tmp_path: Path, ranks: int, options: str = "{}", **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    passes = _passes(tmp_path / "data", ranks)
    launchers = more.pop("launchers", 1)
    trainings = {
        "host": {"options": options, **more},
        "device": {"options": options, **_GPU, **more},
    }
    found = _train_each(tmp_path, ranks, passes, trainings, launchers)
    return found["host"], found["device"]


def _assert_same(host: dict[str, Any], device: dict[str, Any]) -> None:
    assert device["digest"] == host["digest"]
    assert device["dense"] == host["dense"]
    assert device["passes"] == host["passes"]
    assert device["traffic"] == host["traffic"]
    assert all(len(rows) > 100 for rows in device["rows"].values()), "a rank owns next to nothing"


@pytest.fixture(autouse=True)
def host_is_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "host")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_two_ranks_on_devices_end_as_two_on_the_host(tmp_path: Path, program: str) -> None:
    _assert_same(*_both(tmp_path, 2, program=program))


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        "{rows: int8, gradients: int8}",
        "{staleness: 3}",
    ],
)
def test_ways_of_exchange_end_the_same_on_devices(tmp_path: Path, options: str) -> None:
    _assert_same(*_both(tmp_path, 2, options, dim=16))


@pytest.mark.long
def test_early_rows_and_admission_end_the_same_on_devices(tmp_path: Path) -> None:
    host, device = _both(tmp_path, 2, launchers=2, min_count=2)
    _assert_same(host, device)
    assert device["sent"]["sent_bytes_early"] > 0
