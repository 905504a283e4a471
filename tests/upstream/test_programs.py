"""Programs in the style of PaddleBox's own tests of its datasets, in static programs and dygraph.

PaddleBox's test_boxps, test_dataset and (until October 2022) test_paddlebox_datafeed have a
counterpart here or in the other files of this folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.processes import ROOT, run

HERE = Path(__file__).parent
MODES = pytest.mark.parametrize("mode", ["pir", long("dygraph")])


@pytest.fixture(scope="module")
def page_views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated pages of three ads, in four files to train on and one to test."""
    folder = tmp_path_factory.mktemp("page_views")
    options = ("--out", str(folder), "--pages", "4000", "--parts", "4")
    done = run(["datasets/page_views/prepare.py", *options])
    assert done.returncode == 0, done.stderr
    shutil.copy(ROOT / "datasets" / "page_views" / "slots.yaml", folder)
    return folder


def test_two_days_of_join_and_update_with_saves_metrics_and_an_auc_runner(
    in_new_process: Callable[..., Any], page_views: Path, tmp_path: Path
) -> None:
    script = (HERE / "day_program.py").read_text()
    found = in_new_process(script, str(page_views), str(tmp_path))
    assert found["samples"] == [2400] * 8
    assert found["batches"] == {"120": 80}  # 40 page views of three ads
    assert [[values[7] for values in phase] for phase in found["metrics"]] == [[2400, 800]] * 8
    auc, *_, actual, predicted, copc, _size = found["metrics"][-1][0]
    assert auc > 0.8  # update predicts what join has just trained
    assert predicted * copc == pytest.approx(actual)
    whole, without_user, without_ad = (values[0] for values in found["groups"])
    assert 0.55 < whole < 0.8
    assert without_ad < min(whole, without_user) - 0.03
    assert [values[7] for values in found["groups"]] == [2400] * 3
    assert found["day has ended"] == [True, False]
    saves = tmp_path / "saves"
    names = sorted(str(path.parent.relative_to(saves)) for path in saves.rglob("meta.json"))
    assert names == [
        *("20240101/0", "20240101/base", "20240101/delta-1"),
        *("20240102/2", "20240102/base", "20240102/delta-3"),
    ]
    assert 0 < found["loaded"] < found["rows"]  # a delta leaves out rows of a low score


@MODES
@pytest.mark.parametrize("case", ["sid", "single", "none"])
def test_join_and_update_of_one_program(
    in_new_process: Callable[..., Any], tmp_path: Path, mode: str, case: str
) -> None:
    script = (HERE / "phases_program.py").read_text()
    found = in_new_process(script, mode, case, str(tmp_path))
    assert found["finite"]
    assert found["version"] == 1
    # x counts from 1, y down from 99; every instance is shown in both phases, and counted once.
    shows = [[n, 1.0] for n in range(1, 14)] + [[100 - n, 1.0] for n in range(13, 0, -1)]
    assert found["shows"] == shows
    join, update = found["sizes"]["join"], found["sizes"]["update"]
    assert sum(join) == sum(update) == 13
    assert update == [5, 5, 3]
    assert found["views"] == {"sid": 5, "single": 13, "none": 0}[case]
    assert len(join) == {"sid": 3, "single": 7, "none": 3}[case]
    if case != "none":
        assert all(found["ranked"]["join"])
        assert not any(found["ranked"]["update"])


@MODES
def test_the_ways_to_train_a_dataset(
    in_new_process: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    script = (HERE / "dataset_program.py").read_text()
    found = in_new_process(script, mode, str(tmp_path))
    assert found["tags"] == [f"id{number}" for number in range(7)]
    assert found["losses"][1] != found["losses"][0]  # the rows have changed
    assert found["ten"] == [1] * 10
    # Of two instances with different slots; id1 has a slot twice, the others another number.
    assert found["merged"] == [1, ["id3"]]
    assert found["floats"] == [1] * 3
    assert found["queue"] == 2  # windows of one file
    first, second = found["nothing to stream"]
    assert first.startswith("PassError: there is nothing to stream: set_filelist is missing")
    assert second.startswith("PassError: there is nothing to stream")
    with_label, without = found["counted"]
    assert with_label == pytest.approx(without, rel=1e-5)
    assert 0 < without[1] < without[0]
    unchanged, sizes = found["infer"]
    assert unchanged
    assert sizes == [7]
    assert found["input type"].startswith("set_input_type: expected 0, one instance per line")
