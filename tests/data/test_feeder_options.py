"""What the keys of `feeder:` do, from the config to the files on the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddlebox import _native
from paddlebox.data.dataset import Dataset
from paddlebox.training.opening import create_dataset
from tests.data.test_parsed_cache import settled
from tests.support.configs import make_config
from tests.support.fixtures import OpenTable, WriteLines
from tests.support.instances import SLOTS, multislot_lines

KIB = 1 << 10


@pytest.fixture
def with_feeder(
    open_table: OpenTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Dataset]]:
    """with_feeder(**keys of `feeder`): a dataset of a config."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    opened: list[Dataset] = []

    def make(**feeder: Any) -> Dataset:
        config = make_config(data={"format": "multislot", "batch_size": 100}, feeder=feeder)
        opened.append(create_dataset(config, SLOTS, open_table({"name": f"of {len(opened)}"})))
        return opened[-1]

    yield make
    for dataset in opened:
        dataset.close()


@pytest.fixture
def files(write_lines: WriteLines) -> list[Path]:
    """Two files of the same number of instances."""
    lines = [multislot_lines(1000, seed) for seed in (1, 2)]
    return [
        settled(Path(write_lines(name, of_file))) for name, of_file in zip("ab", lines, strict=True)
    ]


def load(dataset: Dataset, *files: Path) -> Any:
    """Loads a pass of the files, and drops it. Returns its figures."""
    dataset.preload([str(file) for file in files])
    dataset.begin_pass()
    dataset.abandon_pass()
    return dataset.stats


def test_instances_over_budget_bytes_go_to_disk(
    with_feeder: Callable[..., Dataset],
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    born, create = list[Path](), _native.core.SpillFile

    def watched(path: str) -> Any:
        born.append(Path(path))
        return create(path)

    monkeypatch.setattr(_native.core, "SpillFile", watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spill"))
    dataset = with_feeder(budget_bytes=16 * KIB)
    assert load(dataset, *files).spilled_bytes > 10 * KIB
    assert {path.parents[1] for path in born} == {tmp_path / "spill"}


def test_a_cache_holds_parsed_files_up_to_cache_bytes(
    with_feeder: Callable[..., Dataset],
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "paddlebox/parsed"
    roomy = with_feeder(cache_bytes="1MiB")
    assert [load(roomy, *files).files_from_cache for _ in range(2)] == [0, 2]
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert len(sizes) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    load(with_feeder(cache_bytes=sum(sizes) - 1), *files)
    assert len(list((tmp_path / "other/paddlebox/parsed").iterdir())) == 1
