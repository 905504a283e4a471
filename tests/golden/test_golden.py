"""The golden run, its saves, its export file and its copies are read, served, restored and trained
on. Each file of another format is refused with both numbers, never reported as damage, and left as
it is. (A segment: tests/ops/store/test_segment.cc; a parsed file:
tests/ops/feed/instances/test_parsed_file.cc.)"""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from paddlebox.config.table import LifeConfig
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.saves import chain_of, donefile, open_save
from paddlebox.saves import meta as of_saves
from paddlebox.saves.reader import Served
from paddlebox.serving import file as of_exports
from paddlebox.serving.predictor import Predictor
from paddlebox.serving.source import RunSource
from paddlebox.store.files import crc32c, unseal
from paddlebox.store.record import FORMAT, frame, unframe
from paddlebox.store.version_store import VersionStore
from tests.support import processes
from tests.support.marks import long

HERE = Path(__file__).parent
TRAIN = ("train", "-c", "config.yaml", "--run-dir", "run")
_LOCKS = ("LOCK", "lock.mdb")


def unpack(folder: Path) -> Path:
    with lzma.open(HERE / "run.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(folder, filter="data")
    return folder


def expected() -> dict[str, Any]:
    return dict(json.loads((HERE / "expected.json").read_text()))


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in _LOCKS}


def tool(folder: Path, name: str, *arguments: str, code: int = 0, output: bool = False) -> str:
    """Its output; where it is to fail, its last line of errors, or with `output` all it said."""
    done = processes.run(["-m", "paddlebox", name, *arguments], folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if output:
        return done.stdout or done.stderr
    return done.stderr.splitlines()[-1] if code else done.stdout


def probabilities(path: Path) -> list[float]:
    """Of an export file, for known users and items, and unknown ones."""
    with Predictor(path, follow_s=0) as predictor:
        offsets, dense = np.arange(3, dtype=np.int32), np.ones((1, 1), np.float32)
        return [
            predictor.predict_feasigns(np.array(pair, np.uint64), offsets, dense).item()
            for pair in ((100, 200), (101, 202), (7, 8))
        ]


def test_it_is_sound_and_holds_the_rows_it_was_left_with(tmp_path: Path) -> None:
    work, wanted = unpack(tmp_path), expected()
    assert json.loads(tool(work, "store", "verify", "run", "--json"))["damage"] == []
    found = json.loads(tool(work, "store", "digest", "run", "--json"))
    assert {key: found[key] for key in wanted} == wanted


def test_its_saves_hold_the_rows_of_its_newest_commit(tmp_path: Path) -> None:
    work = unpack(tmp_path)
    (save,) = chain = chain_of(open_save(work / "saves/20240102/base"))
    assert (save.meta["pass_number"], save.meta["date"]) == (2, "20240102")
    saved = [np.concatenate(part) for part in zip(*Served(chain).chunks(), strict=True)]
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    with RunSource(work / "run", threshold=LifeConfig().base_threshold) as source:
        source.visit(lambda feasigns, rows: kept.append((feasigns.copy(), rows.copy())))
    keys, rows = (np.concatenate(part) for part in zip(*kept, strict=True))
    assert len(saved[1]) == len(keys) > 10
    served = [0, 1, 2, 4, *range(6, rows.shape[1])]  # without delta_score and life_seq
    np.testing.assert_array_equal(
        saved[1][:, served].view(np.uint32), rows[:, served].view(np.uint32)
    )


@pytest.mark.slow
def test_its_export_predicts_as_one_that_is_made_now(tmp_path: Path) -> None:
    work = unpack(tmp_path)
    tool(work, "export", "run", "--out", "new", "--threshold", f"{LifeConfig().base_threshold}")
    golden = probabilities(work / "model")
    assert golden == pytest.approx(probabilities(work / "new"), abs=1e-6)
    assert len({*golden}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("of", ["run", long("copies")])
def test_its_days_go_on_from_the_run_dir_and_from_the_copies(of: str, tmp_path: Path) -> None:
    work = unpack(tmp_path)
    if of == "copies":
        (work / "run").rename(work / "lost")
        tool(work, "store", "restore", "copies", "run")
        digest = json.loads(tool(work, "store", "digest", "run", "--json"))
        assert {name: digest[name] for name in ("sparse_digest", "dense_digest")} == {
            name: expected()[name] for name in ("sparse_digest", "dense_digest")
        }
    tool(work, *TRAIN, "--until", "2024010201")
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["hour"] == "2024-01-02T01:00+00:00"
    assert [line["pass"] for line in lines] == ([1, 2, 3] if of == "run" else [2, 3])
    summary = json.loads((work / "run/summary.json").read_text())
    assert summary["resumed_after_pass"] == 2
    assert summary["sparse_digest"] != expected()["sparse_digest"]
    # The end is stored with the run: a start without it trains nothing more, and does not wait.
    assert "nothing new to train" in tool(work, "train", "run", output=True)
    # The chain of saves goes on, from a copy with one base; and what was served with it.
    bases = ["20240101/base", "20240102/base", *["20240102/base-2"] * (of == "copies")]
    assert [done.name for done in donefile.read(work / "saves", "base")] == bases
    (delta,) = donefile.read(work / "saves", "delta")
    assert chain_of(open_save(work / "saves" / delta.name))[0].name == bases[-1]
    with Predictor(work / "model", follow_s=0) as predictor:
        assert predictor.generation.pass_number == 3


def test_a_run_of_another_format(tmp_path: Path) -> None:
    store = unpack(tmp_path) / "run/store"
    with VersionStore.open_writer(store) as manifest:
        head = manifest.newest()
        assert head is not None
        fields = {**json.loads(head.to_payload()), "format": FORMAT + 1, "new": 1}
        path = store / f"MANIFEST-{head.version:012d}"
        path.write_bytes(frame(json.dumps(fields).encode(), FORMAT + 1))
    before = contents(store)
    for words, code in ((TRAIN, 4), (("store", "stat", "run"), 4), (("store", "digest", "run"), 4)):
        said = tool(tmp_path, *words, code=code)
        assert f"has format {FORMAT + 1}, expected {FORMAT}: open the store with" in said
    assert contents(store) == before


def test_an_export_file_of_another_format(tmp_path: Path) -> None:
    path = unpack(tmp_path) / "model"
    for other in (of_exports.FORMAT - 1, of_exports.FORMAT + 1):
        with lmdb.open(str(path), subdir=False, lock=False) as env, env.begin(write=True) as txn:
            head = json.loads(unseal(bytes(txn.get(b"head") or b""), "head"))
            txn.put(b"head", of_exports.sealed_json({**head, "format": other, "new": 1}))
        before = path.read_bytes()
        with pytest.raises(StoreError, match=f"has format {other}, expected {of_exports.FORMAT}"):
            Predictor(path, follow_s=0)
    said = tool(tmp_path, "export", "model", "--apply", "run", code=4)
    assert f"has format {of_exports.FORMAT + 1}, expected {of_exports.FORMAT}: serve it" in said
    assert path.read_bytes() == before


@pytest.mark.parametrize("other", [of_saves.FORMAT - 1, of_saves.FORMAT + 1])
def test_a_save_of_another_format(tmp_path: Path, other: int) -> None:
    folder = unpack(tmp_path) / "saves/20240102/base"
    fields = json.loads((folder / of_saves.META).read_text())
    del fields["crc32c"], fields["rows"]  # another format may lack a field of this one
    fields = {**fields, "format": other}
    fields["crc32c"] = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    (folder / of_saves.META).write_text(json.dumps(fields))
    with pytest.raises(StoreError, match=f"has format {other}, expected 2") as raised:
        open_save(folder)
    assert not isinstance(raised.value, CorruptionError)


def test_a_copy_of_another_format(tmp_path: Path) -> None:
    work = unpack(tmp_path)
    for path in (work / "copies/checkpoints").iterdir():
        fields = {**json.loads(unframe(path.read_bytes(), "")), "format": FORMAT + 1, "new": 1}
        path.write_bytes(frame(json.dumps(fields).encode(), FORMAT + 1))
    said = tool(work, "store", "restore", "copies", "restored", code=4)
    assert f"has format {FORMAT + 1}, expected {FORMAT}: open the store with" in said
    assert not (work / "restored").exists()


def test_a_run_with_a_key_that_the_config_does_not_have(tmp_path: Path) -> None:
    store = unpack(tmp_path) / "run/store"
    with VersionStore.open_writer(store) as manifest:
        head = manifest.newest()
        assert head is not None
        config = json.loads(json.dumps(head.config))
        config["config"]["table"]["other"] = 0.5
        manifest.append(head.following("pass", config=config))
    before = contents(store)
    refused = tool(tmp_path, *TRAIN, code=2, output=True)
    assert "run: config: table.other: unknown key" in refused
    assert "another version of paddlebox stored this config: use that version" in refused
    assert contents(store) == before
