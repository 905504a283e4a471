"""An export file of a run with several tables: the rows of each in it, versions as of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, TrainingError
from paddlebox.saves import donefile, open_save
from paddlebox.serving import Predictor
from paddlebox.serving.file import ExportFile
from paddlebox.serving.gate import Gate
from paddlebox.serving.source import RunSource, SaveSource
from paddlebox.serving.writer import Writer, export
from tests.conftest import ROOT, run_python
from tests.serving.conftest import instances_of
from tests.serving.test_predictor import evaluation

LAST = ("tags", "publisher", "category", "region", "device")


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last slots, and the first, are of the table wide: neither is one behind the other."""
    text = (ROOT / "datasets/synthetic/slots.yaml").read_text()
    for name in ("user", *LAST):
        found = f"{{name: {name}, type: sparse}}"
        assert found in text
        text = text.replace(found, f"{{name: {name}, type: sparse, table: wide}}")
    path = tmp_path_factory.mktemp("slots") / "slots.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def wide_run(train: Callable[..., Path], slots: Path, tmp_path_factory: Any) -> tuple[Path, Path]:
    """A run with two tables, and where it saved its base and its deltas."""
    out = tmp_path_factory.mktemp("saves")
    run_dir = train(
        "model.type=dnn", f"data.slots={slots}", "extra_tables.wide.embedx_dim=5",
        "extra_tables.wide.embedx_threshold=1", "extra_tables.wide.life.base_threshold=0",
        "data.batch_size=256", f"save.out={out}", "table.life.delta_threshold=0",
        "extra_tables.wide.life.delta_threshold=0",
    )  # fmt: skip
    return run_dir, out


@pytest.fixture(scope="module")
def expected(wide_run: tuple[Path, Path], data: Path) -> np.ndarray:
    """What the training program predicts at the end."""
    return evaluation(wide_run[0], data / "test.txt", run_python)


def predicted(path: Path, data: Path) -> np.ndarray:
    with Predictor(path, follow_s=0) as predictor:
        predictor.warm()
        return predictor.predict(instances_of(data / "test.txt"))


@pytest.mark.slow
def test_predictions_equal_the_training_programs_row_by_row_and_versions_go_both_ways(
    wide_run: tuple[Path, Path], data: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    path, (run_dir, _) = tmp_path / "m", wide_run
    with RunSource(run_dir, version=2) as first:  # of pass 1, after its save
        export(first, path)
    of_first = predicted(path, data)
    assert np.abs(of_first - expected).max() > 1e-3
    with RunSource(run_dir) as newest, Writer(path) as writer:
        record = writer.apply(newest)
        assert [len(part.layers) for part in record.parts] == [2, 2]
        assert [part.name for part in record.parts] == ["", "wide"]
    found = predicted(path, data)
    assert np.abs(found - expected).max() < 1e-6
    assert len(set(found.round(5))) > 500
    with Writer(path) as writer:
        assert writer.rollback().version == 2
    assert np.array_equal(predicted(path, data), of_first)
    with Writer(path) as writer:
        writer.unpin()
        writer.pin(2)
    assert np.array_equal(predicted(path, data), of_first)
    lists = instances_of(data / "test.txt")[:32]
    names = ["user", "item", "query", "history", "words", *LAST]
    flat = [fields[name] for fields in lists for name in names]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in flat])])
    with Predictor(path) as predictor:
        fast = predictor.predict_feasigns(
            np.array([value for one in flat for value in one], np.uint64),
            offsets,
            np.array([fields["dense"] for fields in lists], np.float32),
        )
    assert np.array_equal(fast, of_first[:32])


@pytest.mark.slow
def test_a_gate_keeps_a_version_of_several_tables_back_and_leaves_nothing_of_it(
    wide_run: tuple[Path, Path], data: Path, tmp_path: Path
) -> None:
    path, files = tmp_path / "m", [str(data / "test.txt")]
    with RunSource(wide_run[0], version=2) as first:
        export(first, path)
    before = predicted(path, data)
    refused = pytest.raises(TrainingError, match=r"expected 0\.99 at least")
    with RunSource(wide_run[0]) as newest, Writer(path) as writer, refused:
        writer.apply(newest, gate=Gate(files, min_auc=0.99))
    assert np.array_equal(predicted(path, data), before)
    with ExportFile(path) as file, file.read() as txn:
        kept = file.generations(txn)
        named = {layer for g in kept for part in g.parts for layer in part.layers}
        there = {int(bytes(key).split(b"/")[1]) for key in txn.cursor().iternext(values=False)
                 if bytes(key).startswith(b"layer/")}  # fmt: skip
    assert there == named
    assert len(named) == 2
    with RunSource(wide_run[0]) as newest, Writer(path) as writer:
        writer.apply(newest, gate=Gate(files, min_auc=0.2))
    assert not np.array_equal(predicted(path, data), before)


@pytest.mark.slow
def test_the_runs_saves_serve_what_the_run_does(
    wide_run: tuple[Path, Path], data: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    path, (_, out) = tmp_path / "m", wide_run
    names = [done.name for kind in ("base", "delta") for done in donefile.read(out, kind)]
    assert len(names) == 3
    export(SaveSource(out / names[0]), path)
    with Writer(path) as writer:
        for name in names[1:]:
            writer.apply(SaveSource(out / name))
    assert np.abs(predicted(path, data) - expected).max() < 1e-6
    export(SaveSource(out / names[-1], whole=True), tmp_path / "whole")
    assert np.abs(predicted(tmp_path / "whole", data) - expected).max() < 1e-6
    last = open_save(out / names[-1])
    assert list(last.parts) == ["default", "wide"]


@pytest.mark.slow
def test_another_tables_width_needs_a_new_file(
    wide_run: tuple[Path, Path], run_dir: Path, tmp_path: Path
) -> None:
    with RunSource(run_dir, version=1) as single:
        export(single, tmp_path / "single")
    refused = pytest.raises(ConfigError, match=r"further tables \[\], .* version \['wide'\]")
    with RunSource(wide_run[0]) as several, Writer(tmp_path / "single") as writer, refused:
        writer.apply(several)
