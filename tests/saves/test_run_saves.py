"""A run that saves by itself: which saves there are, that they are right, that no weight moves."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paddlebox
from paddlebox.config import Config, load_config, load_slots
from paddlebox.config.check import validate
from paddlebox.saves import chain_of, donefile, open_save
from paddlebox.store.run_config import of_newest
from paddlebox.store.table import Table
from paddlebox.store.tiered_table import TieredTable, stored_table
from paddlebox.tools.upkeep.report import newest, reading
from paddlebox.training.save_hooks import Save
from tests.conftest import ROOT, make_synthetic, run_python
from tests.saves.common import apply, base_of

SCRIPT = (ROOT / "tests" / "training" / "train_small.py").read_text()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=4, rows=5000)


def train(data: Path, run_dir: Path, *overrides: str) -> dict[str, Any]:
    settings = [
        f"data.train_files=[{data}/train-*.txt]",
        "data.date=20240101",
        "data.files_per_day=2",
        "data.files_per_pass=1",
        "data.batch_size=256",
        "model.hidden=[32]",
        "trainer.dense_threads=1",
        "table.life.base_threshold=0.2",
        "table.life.delete_threshold=0.1",
        "table.life.delta_threshold=0",
    ]
    options = {"folder": str(run_dir), "overrides": [*settings, *overrides]}
    return dict(run_python(SCRIPT, json.dumps(options), env={"OMP_NUM_THREADS": "1"}))


def table_of_run(run_dir: Path) -> TieredTable:
    store = run_dir / "store"
    with reading(store) as manifest:
        record = newest(manifest)
    return stored_table(store, record, read_only=True)


@pytest.mark.slow
def test_a_run_saves_a_base_a_date_and_a_delta_a_pass_beside_the_next_ones_staging(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    saving = train(data, tmp_path / "a", f"save.out={out}")
    plain = train(data, tmp_path / "b")
    assert (saving["dense"], saving["auc"]) == (plain["dense"], plain["auc"])
    bases = [done.name for done in donefile.read(out, "base")]
    deltas = [done.name for done in donefile.read(out, "delta")]
    assert bases == ["20240101/base", "20240102/base"]
    assert deltas == ["20240101/delta-2", "20240102/delta-4"]
    last = open_save(out / deltas[-1])
    assert [save.name for save in chain_of(last)] == ["20240102/base", "20240102/delta-4"]
    with table_of_run(tmp_path / "a") as table:
        held = base_of(table)
        assert 0 < len(held) < table.counters()["ssd_rows"]
        assert apply(chain_of(last)) == held
        dense = table.load_dense()
    assert all((last.dense()[name] == dense[name]).all() for name in dense)
    assert load_slots(last.folder / "slots.yaml") == of_newest(tmp_path / "a")[1]
    assert json.loads(last.file("config.json"))["save"]["out"] == str(out)
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["save"]["kind"] for line in lines] == ["base", "delta"] * 2


@pytest.mark.slow
def test_a_run_copies_its_saves_while_it_trains(data: Path, tmp_path: Path) -> None:
    out, there = tmp_path / "out", tmp_path / "there"
    train(data, tmp_path / "run", f"save.out={out}", f"save.copy_to=file://{there}")
    last = open_save(there / "20240102" / "delta-4")
    assert apply(chain_of(last)) == apply(chain_of(open_save(out / "20240102" / "delta-4")))
    for kind in ("base", "delta"):
        assert donefile.read(there, kind) == donefile.read(out, kind)
    line = (there / donefile.NAMES["base"]).read_text().splitlines()[0]
    assert json.loads(line)["input"] == f"file://{there}/20240101/base/000"


def test_an_error_of_the_last_save_ends_the_copies_too() -> None:
    closed = []

    def fail() -> None:
        raise OSError("a save")

    hook = Save.__new__(Save)
    hook._saves = SimpleNamespace(close=fail)  # type: ignore[assignment]
    hook._copier = SimpleNamespace(close=lambda: closed.append("copies"))  # type: ignore[assignment]
    with pytest.raises(OSError, match="a save"):
        hook.close(None)
    assert closed == ["copies"]


@pytest.mark.slow
def test_a_run_goes_on_from_a_store_made_of_its_saves(data: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "b"
    train(data, tmp_path / "a", f"save.out={out}")
    last = open_save(out / donefile.read(out, "delta")[-1].name)
    config = validate(Config, json.loads(last.file("config.json")), "config.json")
    with Table(config.table, seed=config.seed, folder=again / "store") as table:
        rows = paddlebox.BoxWrapper(table).load_model(str(last.folder))
        assert rows == len(apply(chain_of(last))) > 0
    other = ["data.date=20240103", f"save.out={tmp_path / 'other'}"]
    train(data, again, *other)
    lines = (again / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])["hits"]
    assert first["ssd"] > 500  # rows that were loaded
    assert (
        first["new"]
        < json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[0])["hits"]["new"]
    )


def test_by_default_a_run_saves_nothing() -> None:
    assert load_config(ROOT / "configs" / "deepfm_synthetic.yaml", []).save.out == ""
