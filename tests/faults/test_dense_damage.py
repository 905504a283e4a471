"""Whoever reads the dense state of a run or of a save finds a damaged tensor, and names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle
import pytest

from paddlebox.config import Config, load_config
from paddlebox.errors import CorruptionError
from paddlebox.saves import open_save
from paddlebox.saves.load import load_save, merge_saves
from paddlebox.serving.source import RunSource, SaveSource
from paddlebox.store.run_config import continuing
from paddlebox.store.snapshot import Snapshot
from paddlebox.tools.upkeep.cli import store_main
from paddlebox.training import run
from paddlebox.training.evaluation import evaluate
from paddlebox.training.opening import open_table
from tests.golden.test_golden import unpack

RUN, SAVE = Path("run"), Path("saves/20240102/base")
_TENSOR = "linear_0.w_0"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Of a run by the hour that has saved, of which every dense.bin has lost one bit. Tests run in
    its folder."""
    work = unpack(tmp_path)
    paths = list(work.rglob("dense.bin"))
    assert len(paths) == 4  # of two versions of the run, and of two saves
    for path in paths:
        index = json.loads(path.with_name("dense.json").read_text())["tensors"]
        (at,) = (tensor["offset"] for tensor in index if tensor["name"] == _TENSOR)
        content = bytearray(path.read_bytes())
        content[at + 5] ^= 4
        path.write_bytes(content)
    monkeypatch.chdir(work)
    tests = "data.test_files=[logs/20240102/00/part-0.txt]"
    yield load_config(
        "config.yaml", [tests, "save.out=''", "publish.file=''", "checkpoint.copy_to=''"]
    )
    paddle.disable_static()


def _load(config: Config) -> None:
    with open_table(config, RUN / "store", read_only=True) as table:
        table.load_dense()


def _load_beside_training(config: Config) -> None:
    with (
        open_table(config, RUN / "store", read_only=True) as table,
        Snapshot(table) as snapshot,
    ):
        snapshot.open()[0].load_dense()


def _serve_run(config: Config) -> None:
    del config
    with RunSource(RUN) as source:
        source.dense()


def _load_save(config: Config) -> None:
    with open_table(config, Path("new/store")) as table:
        load_save(open_save(SAVE), table)


_READERS: dict[str, Callable[[Config], Any]] = {
    "load_dense": _load,
    "load_dense of what saves beside training": _load_beside_training,
    "resume": lambda config: run.train(config, RUN),
    "init_from": lambda config: run.train(config, Path("new"), source=str(RUN)),
    "evaluate": lambda config: evaluate(continuing(config, RUN), RUN),
    "export of a run": _serve_run,
    "export of a save": lambda _: SaveSource(SAVE).dense(),
    "load_save": _load_save,
    "merge of saves": lambda _: merge_saves([open_save(SAVE)], Path("merged"), "20240102/base"),
}


@pytest.mark.parametrize("reader", _READERS)
def test_a_damaged_tensor_is_never_read(config: Config, reader: str) -> None:
    with pytest.raises(CorruptionError, match=f"dense.bin: tensor '{_TENSOR}': expected 176 bytes"):
        _READERS[reader](config)


@pytest.mark.usefixtures("config")
def test_verify_names_the_damaged_tensors_of_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert store_main(["verify", "run", "--json"]) == 1
    damage = json.loads(capsys.readouterr().out)["damage"]
    for version, one in zip(("000000000001", "000000000003"), damage[-2:], strict=True):
        assert one["file"] == f"dense/{version}/dense.bin"
        assert f"{version}/dense.bin: tensor '{_TENSOR}': expected" in one["message"]
