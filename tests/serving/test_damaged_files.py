"""Export files that are damaged, cut short or replaced, also while they are served."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.serving import Predictor
from paddlebox.serving.writer import Writer, export
from tests.conftest import ROOT
from tests.serving.conftest import Rows
from tests.support import processes
from tests.support.marks import long

ONE = {"dense": [0, 0, 0, 0], "user": 5}


@pytest.fixture(scope="module")
def exported(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three transactions at least, with pages that are free."""
    from paddlebox.serving.source import RunSource

    path = tmp_path_factory.mktemp("exported") / "m"
    with RunSource(run_dir) as run:
        export(Rows(run, "base", 1, dict.fromkeys(range(1, 3001), 0.5)), path)
        for version in (2, 3, 4, 5, 6):
            with Writer(path) as writer:
                writer.apply(Rows(run, "delta", version, dict.fromkeys(range(1, 40), version / 9)))
    return path


@pytest.mark.parametrize("files", [40, long(2000)])
def test_a_damaged_file_is_served_as_the_sound_one_or_refused(exported: Path, files: int) -> None:
    given = [str(exported), "--files", str(files), "--seed", "7"]
    done = processes.run([str(ROOT / "tests/fuzz/fuzz_exports.py"), *given])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'refused'" in done.stdout


CUT = """
import os, sys
from paddlebox.errors import CorruptionError
from paddlebox.serving import Predictor

path, size = sys.argv[1], int(sys.argv[2])
one = {"dense": [0, 0, 0, 0], "user": 5}
with Predictor(path, follow_s=0, resident_bytes=0) as predictor:
    if sys.argv[3] == "after":
        predictor.predict([one])
    os.truncate(path, size)
    for ask in (lambda: predictor.predict([one]), predictor.refresh, predictor.check):
        try:
            ask()
            print("answered")
        except CorruptionError as error:
            print("is cut short" in str(error) or "damaged" in str(error))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_is_cut_short_while_it_is_open_is_an_error_and_no_signal(
    exported: Path, tmp_path: Path, when: str
) -> None:
    path = shutil.copy(exported, tmp_path / "m")
    done = processes.run(["-c", CUT, str(path), "8192", when])
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 3), done.stderr


def test_another_file_in_its_place_is_never_mixed_with_the_one_that_is_open(
    run: Any, exported: Path, tmp_path: Path
) -> None:
    path, other = Path(shutil.copy(exported, tmp_path / "m")), tmp_path / "other"
    export(Rows(run, "base", 1, dict.fromkeys(range(1, 3001), -3.0)), other)
    with Predictor(other) as there:
        expected = there.predict([ONE])
    with Predictor(path, follow_s=0) as predictor:
        before = predictor.predict([ONE])
        os.replace(shutil.copy(other, tmp_path / "new"), path)  # as it should be done
        with pytest.raises(StoreError, match="is not the file that was opened"):
            predictor.refresh()
        assert np.array_equal(predictor.predict([ONE]), before)
    with Predictor(path, follow_s=0) as predictor:
        assert np.array_equal(predictor.predict([ONE]), expected)


def test_a_file_that_is_written_over_is_refused_or_read_anew(run: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "m", tmp_path / "other"
    for one, weight in ((path, 0.5), (other, -3.0)):
        export(Rows(run, "base", 1, dict.fromkeys(range(1, 3001), weight)), one)
    with Predictor(other) as there:
        expected = there.predict([ONE])
    with Predictor(path, follow_s=0) as predictor:
        predictor.predict([ONE])
        with path.open("r+b") as file:  # the same generation and layers at the same places
            file.write(other.read_bytes())
        try:
            switched = predictor.refresh()
        except CorruptionError:
            return
        assert switched
        assert np.array_equal(predictor.predict([ONE]), expected)
