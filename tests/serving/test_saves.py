"""Saves in an export file: it serves the trainer's rows, and only the next one follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config.checkpoint import SaveConfig
from paddlebox.errors import CorruptionError, StoreError, TrainingError
from paddlebox.saves import Saver, donefile, open_save, saver
from paddlebox.saves.saver import BackgroundSaves
from paddlebox.serving.file import ExportFile
from paddlebox.serving.follow import Follower
from paddlebox.serving.generation import OpenRows
from paddlebox.serving.source import SaveSource
from paddlebox.serving.writer import Writer, export
from paddlebox.store.table import Table
from tests.conftest import ROOT, tool
from tests.saves.common import FIRST_DAY, feasigns, open_table, train
from tests.saves.common import config as small_table
from tests.support.serving_library import Server

PROBE = np.arange(1, 400, dtype=np.uint64)
DIM = 4


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def model_files() -> dict[str, bytes]:
    """Of a model of one slot over rows of the small table."""
    from paddlebox.config import load_config

    config = load_config(
        "configs/deepfm_synthetic.yaml", ["data.train_files=[x]", "model.hidden=[4]"]
    )
    config = config.model_copy(update={"table": small_table()})
    return {
        "config.json": config.canonical_json().encode(),
        "slots.yaml": Path(config.data.slots).read_bytes(),
    }


class Trainer:
    """A table that trains and saves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._dense = dense_state()  # before the table, which leaves static mode
        self.table: Table = open_table(folder / "store", small_table(base_threshold=0.1))
        self._files = model_files()
        self._pass = 0

    def train(self, first: int, count: int, day: int = FIRST_DAY, show: float = 5) -> None:
        self._pass += 1
        train(self.table, feasigns(first, count), self._pass, day=day, show=show)

    def save(self, kind: str) -> Path:
        return Path(getattr(self.saver(), kind)(f"20240101/{kind}-{self._pass}").folder)

    def saver(self) -> Saver:
        return Saver(self.table, self.folder / "out", extra=self._files, dense=self._dense)

    def close(self) -> None:
        self.table.close()

    def rows(self) -> dict[int, np.ndarray]:
        """Show, click, embed_w and embedx of each row that a base saved now would hold."""
        held: dict[int, np.ndarray] = {}
        at = 7 + 1  # of embedx: behind embed_w and its one word of state (docs/formats/row.md)

        def visit(found: np.ndarray, rows: np.ndarray) -> None:
            owns = (rows[:, 0].view(np.uint32) >> 16 & 1).astype(bool)
            embedx = np.where(owns[:, None], rows[:, at : at + DIM], np.float32(0))
            kept = np.concatenate([rows[:, [1, 2, 6]], embedx], axis=1)
            held.update(zip(found.tolist(), kept, strict=True))

        self.table.rows_of_base(visit)
        return held


Make = Callable[[Path], Trainer]


@pytest.fixture
def trainer_in() -> Iterator[Make]:
    with ExitStack() as opened:
        yield lambda folder: opened.enter_context(closing(Trainer(folder)))


_dense: dict[str, np.ndarray] = {}


def dense_state() -> dict[str, np.ndarray]:
    """Of the model of `model_files`, as training would begin it."""
    if not _dense:
        from paddlebox.config import Config, load_slots
        from paddlebox.config.check import validate
        from paddlebox.training.runner import build_runner

        config = validate(Config, json.loads(model_files()["config.json"]), "test")
        _dense.update(build_runner(config, load_slots(config.data.slots)).dense_state())
    return _dense


def check_serves(path: Path, expected: dict[int, np.ndarray]) -> None:
    """The export serves the expected rows, to the bit but for the logarithms of CVM, and no other
    of PROBE."""
    with ExportFile(path) as file, file.read() as txn:
        record = file.generation(txn, file.head(txn).current)
        table = OpenRows(file, txn, record).table
        table.test_all()
        there = table.contains(PROBE).astype(bool)
        offsets = np.arange(record.slots * len(PROBE) + 1) // record.slots
        out = np.empty((len(PROBE), table.output_width), np.float32)
        dense = np.zeros((len(PROBE), record.dense_width), np.float32)
        table.pull(PROBE, offsets.astype(np.int32), dense, out)
    # The last slot of each instance has its one feasign.
    pooled = out[:, (record.slots - 1) * (3 + DIM) : record.slots * (3 + DIM)]
    assert PROBE[there].tolist() == sorted(expected)
    rows = np.array([expected[feasign] for feasign in PROBE[there].tolist()])
    assert pooled[there][:, 2:].tobytes() == rows[:, 2:].tobytes()
    counts = np.log(rows[:, :2] + 1)
    counts[:, 1] -= counts[:, 0]
    np.testing.assert_allclose(pooled[there][:, :2], counts, atol=1e-6)
    assert not pooled[~there].any()


def test_a_base_and_its_deltas_serve_the_trainers_rows_deletions_included(
    tmp_path: Path, trainer_in: Make
) -> None:
    trainer, path = trainer_in(tmp_path), tmp_path / "m"
    trainer.train(1, 200)
    export(SaveSource(trainer.save("base")), path)
    check_serves(path, trainer.rows())
    trainer.train(150, 150)  # rows that change, and new ones
    with Writer(path) as writer:
        writer.apply(SaveSource(trainer.save("delta")))
    expected = trainer.rows()
    assert len(expected) == 299
    check_serves(path, expected)
    trainer.table.life.shrink(FIRST_DAY, min_score=0.9)  # five shows without a click are not enough
    trainer.train(280, 60, show=9)
    delta = trainer.save("delta")
    assert open_save(delta).meta["deleted"] > 0
    with Writer(path) as writer:
        record = writer.apply(SaveSource(delta))
    assert record.save == {"name": "20240101/delta-3", "crc32c": open_save(delta).meta["crc32c"]}
    expected = trainer.rows()
    assert 0 < len(expected) < 299
    check_serves(path, expected)
    # The same of the last delta with its chain, in one.
    export(SaveSource(delta, whole=True), tmp_path / "whole")
    check_serves(tmp_path / "whole", expected)


def test_a_delta_of_another_parent_is_refused_and_both_are_named(
    tmp_path: Path, trainer_in: Make
) -> None:
    with closing(Trainer(tmp_path / "b")) as other:  # whose saves have the names of the others
        other.train(1, 51)
        other.save("base")
        other.train(1, 60)
        foreign = other.save("delta")
    trainer, path = trainer_in(tmp_path / "a"), tmp_path / "m"
    trainer.train(1, 50)
    base = trainer.save("base")
    export(SaveSource(base), path)
    before = trainer.rows()
    trainer.train(1, 60)
    first = trainer.save("delta")
    trainer.train(1, 70)
    second = trainer.save("delta")
    with Writer(path) as writer:
        for wrong, parent in ((second, "delta-2"), (foreign, "base-1")):
            with pytest.raises(StoreError, match=rf"base-1, expected .* extends 20240101/{parent}"):
                writer.apply(SaveSource(wrong))
        with pytest.raises(StoreError, match="expected one that follows"):
            writer.apply(SaveSource(base))
    check_serves(path, before)
    with Writer(path) as writer:
        writer.apply(SaveSource(first))
        with pytest.raises(StoreError, match=r"delta-2, expected .* extends 20240101/base-1"):
            writer.apply(SaveSource(first))
        writer.apply(SaveSource(second))
    check_serves(path, trainer.rows())


def test_a_follower_keeps_what_is_shown_where_a_save_deletes_a_fifth_of_the_rows(
    trainer_in: Make, tmp_path: Path
) -> None:
    trainer, path = trainer_in(tmp_path), tmp_path / "m"
    follower = Follower(tmp_path / "out", path)
    trainer.train(1, 100)
    trainer.save("base")
    assert [one.refused for one in follower.catch_up()] == [""]
    shown = trainer.rows()
    trainer.table.life.shrink(FIRST_DAY, min_score=1000.0)
    trainer.train(1, 79)
    delta = trainer.save("delta")
    (told,) = follower.catch_up()
    assert (
        "has 21 rows less than the 100 that are shown (21%), expected at most 20%" in told.refused
    )
    assert told.pass_number == 2
    check_serves(path, shown)
    with Writer(path) as writer:  # what --force does
        assert writer.apply(SaveSource(delta)).rows == 79
    check_serves(path, trainer.rows())


def test_a_save_that_cannot_be_applied_is_reported_once_and_the_next_base_is_served(
    trainer_in: Make, tmp_path: Path
) -> None:
    trainer, path = trainer_in(tmp_path), tmp_path / "m"
    follower = Follower(tmp_path / "out", path)
    trainer.train(1, 50)
    trainer.save("base")
    assert [one.refused for one in follower.catch_up()] == [""]
    shown = trainer.rows()
    trainer.train(20, 50)
    broken = trainer.save("delta")
    trainer.train(30, 50)
    trainer.save("delta")
    meta = (broken / "meta.json").read_bytes()
    (broken / "meta.json").write_bytes(meta[:20])
    (told,) = follower.catch_up()  # the second delta needs the first
    assert told.refused
    assert told.name == "20240101/delta-2"
    assert (follower.catch_up(), follower.failed) == ([], True)
    check_serves(path, shown)
    (broken / "meta.json").write_bytes(meta)  # it was for a moment
    assert [one.refused for one in follower.catch_up()] == ["", ""]
    check_serves(path, trainer.rows())
    trainer.train(40, 50)
    lost = trainer.save("delta")
    trainer.train(60, 50)
    base = trainer.save("base")
    (lost / "meta.json").unlink()
    told, applied = follower.catch_up()
    assert told.refused
    assert (applied.refused, applied.name) == ("", f"20240101/{base.name}")
    assert not follower.failed
    check_serves(path, trainer.rows())


class Moody:
    """A gate that refuses if it is told so."""

    refuses = False

    def check(self, *_: Any) -> dict[str, float]:
        if self.refuses:
            raise TrainingError("refused")
        return {}


def test_after_a_refused_save_the_next_brings_its_chain_and_the_one_after_only_itself(
    trainer_in: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, path = trainer_in(tmp_path), tmp_path / "m"
    gate: Any = Moody()
    follower = Follower(tmp_path / "out", path, gate=gate)
    opened_whole: list[bool] = []

    def opened(folder: Path, *, whole: bool) -> SaveSource:
        opened_whole.append(whole)
        return SaveSource(folder, whole=whole)

    monkeypatch.setattr("paddlebox.serving.follow.SaveSource", opened)
    trainer.train(1, 50)
    trainer.save("base")
    for number, refuses in enumerate((False, True, False, False)):
        if number:
            trainer.train(10 * number, 50)
            trainer.save("delta")
        gate.refuses = refuses
        assert [bool(one.refused) for one in follower.catch_up()] == [refuses]
    assert opened_whole == [True, False, True, False]
    check_serves(path, trainer.rows())


def test_a_line_of_a_donefile_that_cannot_be_read_is_reported_and_left_out(
    trainer_in: Make, tmp_path: Path
) -> None:
    trainer, path, out = trainer_in(tmp_path), tmp_path / "m", tmp_path / "out"
    follower = Follower(out, path)
    trainer.train(1, 50)
    trainer.save("base")
    follower.catch_up()
    for first in (20, 30):
        trainer.train(first, 50)
        trainer.save("delta")
    file = out / donefile.NAMES["delta"]
    lines = file.read_text().splitlines()
    for wrong in ("no JSON", '{"key": "1", "input": "../../etc/rows"}', "{}"):
        file.write_text(f"{wrong}\n{lines[1]}\n")
        with pytest.raises(CorruptionError, match="line 1 has a wrong format"):
            donefile.read(out, "delta")
        told, *applied = follower.catch_up()
        assert "xbox_patch_done.txt: line 1 has a wrong format" in told.refused
        assert [one.refused for one in applied] == [""] * (wrong == "no JSON")
        check_serves(path, trainer.rows())  # the second delta, with its whole chain


def test_a_new_base_of_the_version_there_is_lets_its_deltas_follow(
    tmp_path: Path, trainer_in: Make
) -> None:
    trainer, path = trainer_in(tmp_path), tmp_path / "m"
    trainer.train(1, 50)
    export(SaveSource(trainer.save("base")), path)
    trainer.train(20, 50)
    delta, base = trainer.save("delta"), trainer.save("base")
    trainer.train(60, 50)
    last = trainer.save("delta")
    with Writer(path) as writer:
        for save in (delta, base, last):
            writer.apply(SaveSource(save))
    check_serves(path, trainer.rows())


def test_readers_that_follow_go_over_to_the_base_after_a_long_chain(
    tmp_path: Path, trainer_in: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "LONGEST_CHAIN", 2)
    trainer, path, late = trainer_in(tmp_path), tmp_path / "m", tmp_path / "late"
    follower, sleeper = (Follower(tmp_path / "out", file) for file in (path, late))
    saves = BackgroundSaves(trainer.saver(), SaveConfig(out="unused"))
    kinds = ""
    with ExitStack() as opened:
        opened.callback(saves.close)
        for number in range(1, 10):
            trainer.train(10 * number, 100)
            due = saves.due()
            saves.finish()
            assert due is not None
            kinds += due["kind"][0]
            assert [one.refused for one in follower.catch_up()] == [""]
            if number == 1:
                sleeper.catch_up()
                server = opened.enter_context(Server(path))
            assert server.refresh() == (number > 1)
            with server.version() as version:
                assert version.about.pass_number == number
            check_serves(path, trainer.rows())
        sleeper.catch_up()  # the chains that it knows are gone
        check_serves(late, trainer.rows())
    assert kinds == "bdbdbdbdb"


@pytest.mark.slow
def test_the_tool_exports_a_save_and_applies_the_next_and_refuses_what_is_not_to_be_served(
    tmp_path: Path, trainer_in: Make
) -> None:
    trainer, path = trainer_in(tmp_path), tmp_path / "m"
    trainer.train(1, 100)
    base = trainer.save("base")
    done = tool("export", "--from-save", base, "--out", path, "--precision", "float16")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["save"]["name"] == "20240101/base-1"
    trainer.train(50, 100)
    delta = trainer.save("delta")
    done = tool("export", path, "--apply", delta)
    assert done.returncode == 0, done.stderr
    version = open_save(delta).meta["version"]
    assert json.loads(done.stdout)["version"] == version
    assert f"{path}: version {version}, pass 2 (20240101) of {delta}" in done.stderr
    batch = trainer.save("batch")
    for arguments, message in (
        ((path, "--apply", batch), "is a batch"),
        ((path, "--apply", delta, "--threshold", "1"), "--threshold is for a run"),
        ((path, "--from-save", base, "--out", path), "expected either a path or --from-save"),
        (("--from-save", base, "--show"), "--from-save needs --out"),
    ):
        done = tool("export", *arguments)
        assert done.returncode != 0
        assert message in done.stderr
        assert "Traceback" not in done.stderr
