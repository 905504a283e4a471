"""Run dirs of every earlier release open and go on; one of a later release, and one from before the
first, are refused with their reason and left as they are."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.serving.predictor import Predictor
from paddlebox.store.manifest import Manifest
from paddlebox.store.record import FORMAT, frame
from tests.golden.make_run import ROOT
from tests.support import processes

HERE = Path(__file__).parent
# Format 1 was never released. Its record can be read, but HashBytes was another then: hashed
# strings were other feasigns, and the fingerprint of a row's layout another number.
RUNS = sorted(path.name for path in HERE.glob("run_v*") if path.name != "run_v1")
_LOCKS = ("LOCK", "lock.mdb")


def test_there_is_a_run_of_every_format_of_the_record() -> None:
    assert [f"run_v{number}" for number in range(2, FORMAT + 1)] == RUNS


def unpack(name: str, folder: Path) -> Path:
    with lzma.open(HERE / name / "run.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(folder, filter="data")
    return folder


def expected(name: str) -> dict[str, Any]:
    return dict(json.loads((HERE / name / "expected.json").read_text()))


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in _LOCKS}


def tool(folder: Path, name: str, *arguments: str, code: int = 0, output: bool = False) -> str:
    """Its output; where it is to fail, its last line of errors, or with `output` all it said."""
    done = processes.run([str(ROOT / f"tools/{name}.py"), *arguments], folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if output:
        return done.stdout or done.stderr
    return done.stderr.splitlines()[-1] if code else done.stdout


@pytest.mark.parametrize("name", RUNS)
def test_it_is_sound_and_holds_the_rows_it_was_left_with(name: str, tmp_path: Path) -> None:
    work, wanted = unpack(name, tmp_path), expected(name)
    assert json.loads(tool(work, "store", "verify", "run", "--json"))["damage"] == []
    found = json.loads(tool(work, "store", "digest", "run", "--json"))
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_it_trains_on_and_is_exported(name: str, tmp_path: Path) -> None:
    work = unpack(name, tmp_path)
    tool(work, "train", "-c", "config.yaml", "--run-dir", "run")
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["pass"] for line in lines] == [1, 2, 3]
    assert [line["samples"] for line in lines] == [40, 40, 40]
    summary = json.loads((work / "run/summary.json").read_text())
    assert summary["resumed_after_pass"] == 2
    assert summary["sparse_digest"] != expected(name)["sparse_digest"]
    assert json.loads(tool(work, "store", "verify", "run", "--json"))["damage"] == []
    tool(work, "export", "run", "--out", "model")
    with Predictor(work / "model", follow_s=0) as predictor:
        offsets = np.arange(3, dtype=np.int32)
        dense = np.ones((1, 1), np.float32)
        known = predictor.predict_feasigns(np.array([100, 200], np.uint64), offsets, dense)
        unknown = predictor.predict_feasigns(np.array([7, 8], np.uint64), offsets, dense)
    assert 0 < known.item() < 1
    assert known.tolist() != unknown.tolist()


@pytest.mark.parametrize("name", RUNS[-1:])
def test_a_run_of_a_later_release_is_refused_and_left_as_it_is(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path) / "run/store"
    with Manifest.open_writer(store) as manifest:
        head = manifest.head()
        assert head is not None
        fields = {**json.loads(head.to_payload()), "format": FORMAT + 1, "new": 1}
        path = store / f"MANIFEST-{head.version:012d}"
        path.write_bytes(frame(json.dumps(fields).encode(), FORMAT + 1))
    before = contents(store)
    train = ("train", "-c", "config.yaml", "--run-dir", "run")
    for words, code in ((train, 4), (("store", "stat", "run"), 2), (("store", "digest", "run"), 2)):
        said = tool(tmp_path, *words, code=code)
        assert f"written by a later version (format {FORMAT + 1}, " in said
        assert "open the store with that version" in said
    assert contents(store) == before


@pytest.mark.slow
def test_a_run_from_before_the_first_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    work = unpack("run_v1", tmp_path)
    before = contents(work / "run")
    found = json.loads(tool(work, "store", "verify", "run", "--json"))
    assert (found["damage"], found["versions"], found["segments"]) == ([], [1, 2], 2)
    said = tool(work, "train", "-c", "config.yaml", "--run-dir", "run", code=4)
    assert "does not hold its configuration: choose another --run-dir, or --fresh" in said
    said = tool(work, "export", "run", "--out", "model", code=2)
    assert said.startswith("ConfigError: segment ")
    assert "holds rows of another layout" in said
    for command in ("digest", "migrate"):
        assert "holds rows of another layout" in tool(work, "store", command, "run", code=2)
    assert contents(work / "run") == before
