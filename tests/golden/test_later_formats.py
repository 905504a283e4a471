"""What a later release wrote, of each format that has a page in docs/formats: it is refused with
the reason, never taken for damage, and left as it is. (A later run dir: test_golden_runs; a
segment: tests/ops/store/test_segment.cc; a parsed file:
tests/ops/feed/instances/test_parsed_file.cc.)"""

from __future__ import annotations

import json
from pathlib import Path

import lmdb
import pytest

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.saves import meta as of_saves
from paddlebox.saves import open_save
from paddlebox.serving import file as of_exports
from paddlebox.serving.predictor import Predictor
from paddlebox.store.crc import crc32c
from paddlebox.store.manifest import Manifest
from paddlebox.store.record import FORMAT, frame, seal, unframe, unseal
from tests.golden.test_golden_hours_and_ranks import BY_THE_HOUR
from tests.golden.test_golden_runs import contents, tool, unpack

TRAIN = ("train", "-c", "config.yaml", "--run-dir", "run")


def test_an_export_file(tmp_path: Path) -> None:
    path, later = unpack(BY_THE_HOUR, tmp_path) / "model", of_exports.NEWEST_FORMAT + 1
    with lmdb.open(str(path), subdir=False, lock=False) as env, env.begin(write=True) as txn:
        head = json.loads(unseal(bytes(txn.get(b"head") or b""), "head"))
        txn.put(b"head", seal(of_exports.to_json({**head, "format": later, "new": 1})))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"written by a later version .format {later}"):
        Predictor(path, follow_s=0)
    said = tool(tmp_path, "export", "model", "--apply", "run", code=4)
    assert f"written by a later version (format {later}, " in said
    assert path.read_bytes() == before


def test_a_save(tmp_path: Path) -> None:
    folder = unpack(BY_THE_HOUR, tmp_path) / "saves/20240102/base"
    fields, later = json.loads((folder / of_saves.META).read_text()), of_saves.FORMAT_OF_TABLES + 1
    del fields["crc32c"], fields["rows"]  # a later one may lack what this one expects
    fields = {**fields, "format": later}
    fields["crc32c"] = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    (folder / of_saves.META).write_text(json.dumps(fields))
    with pytest.raises(StoreError, match=f"written by a later version .format {later}") as raised:
        open_save(folder)
    assert not isinstance(raised.value, CorruptionError)


def test_a_copy(tmp_path: Path) -> None:
    work = unpack(BY_THE_HOUR, tmp_path)
    for path in (work / "copies/checkpoints").iterdir():
        fields = {**json.loads(unframe(path.read_bytes(), "")), "format": FORMAT + 1, "new": 1}
        path.write_bytes(frame(json.dumps(fields).encode(), FORMAT + 1))
    said = tool(work, "store", "restore", "copies", "restored", code=2)
    assert f"written by a later version (format {FORMAT + 1}, " in said
    assert not (work / "restored").exists()


def test_a_run_with_a_value_that_this_release_does_not_know(tmp_path: Path) -> None:
    """A release that adds a key of the configuration leaves the format as it is."""
    work = unpack("run_v2", tmp_path)
    store = work / "run/store"
    with Manifest.open_writer(store) as manifest:
        head = manifest.head()
        assert head is not None
        config = json.loads(json.dumps(head.config))
        config["config"]["table"]["of_the_future"] = 0.5
        manifest.commit(head.following("pass", config=config))
    before = contents(store)
    refused = tool(work, *TRAIN, code=2, output=True)
    assert "table.of_the_future: was 0.5, now null" in refused
    assert contents(store) == before
