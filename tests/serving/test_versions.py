"""Versions in an export file: layers, deletions, merges, pins, the gate, and those who read on."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config.checkpoint import Bounds
from paddlebox.errors import StoreError, StoreLockedError, TrainingError
from paddlebox.serving import Predictor
from paddlebox.serving.file import ExportFile
from paddlebox.serving.gate import Gate
from paddlebox.serving.generation import OpenRows
from paddlebox.serving.layers import MAX_LAYERS
from paddlebox.serving.writer import KEPT, Writer, export
from paddlebox.store.copies import copy_version, restore
from paddlebox.store.version_store import VersionStore
from tests.conftest import PATIENCE_S, ROOT, tool
from tests.serving.conftest import Rows
from tests.support.marks import long


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def served(path: Path, feasigns: list[int]) -> dict[int, float]:
    """embed_w of the feasigns that have a row."""
    with ExportFile(path) as file, file.read() as txn:
        record = file.generation(txn, file.head(txn).current)
        table = OpenRows(file, txn, record).table
        table.test_all()
        ids = np.array(feasigns, np.uint64)
        there = table.contains(ids)
        slots = record.slots
        offsets = (np.arange(len(ids) * slots + 1) // slots).astype(np.int32)
        dense = np.zeros(len(ids) * record.dense_width, np.float32)
        pooled = np.empty((len(ids), table.output_width), np.float32)
        table.pull(ids, offsets, dense, pooled)
        # The last slot of each instance has its one feasign; embed_w is its third column.
        at = (slots - 1) * (record.embedx_dim + 3) + 2
        weights = pooled[:, at]
    assert (weights[there == 0] == 0).all()
    return {f: float(w) for f, w, one in zip(feasigns, weights, there, strict=True) if one}


@pytest.mark.parametrize("seed", [0, long(1), long(2)])
def test_a_base_and_any_deltas_serve_exactly_the_rows_of_the_last_version(
    seed: int, run: Any, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    path = tmp_path / "m"
    universe = list(range(1, 6001))
    model = {f: float(f) for f in rng.sample(universe, 3000)}
    export(Rows(run, "base", 1, model), path)
    merged = False
    for version in range(2, 14):
        before = version - 1
        if version % 5 == 0:  # a whole base: the difference becomes a layer
            model = {f: rng.choice([model.get(f, 1.0), float(version)])
                     for f in rng.sample(universe, 3000)}  # fmt: skip
            source = Rows(run, "base", version, model)
        else:
            changed = {f: float(version) for f in rng.sample(universe, rng.choice([1, 50, 600]))}
            gone = set(rng.sample(universe, 100)) - set(changed)
            model = {**{f: w for f, w in model.items() if f not in gone}, **changed}
            source = Rows(run, "delta", version, changed, gone, follows=before)
        with Writer(path) as writer:
            layers = writer.apply(source).layers
        merged |= len(layers) <= 2
        assert len(layers) <= MAX_LAYERS
        assert served(path, universe) == model
    assert merged
    with ExportFile(path) as file, file.read() as txn:
        kept = file.generations(txn)
        assert [g.version for g in kept] == [10, 11, 12, 13]
        assert len(kept) == KEPT + 1
        named = {layer for g in kept for layer in g.layers}
        found = {int(bytes(key).split(b"/")[1]) for key in txn.cursor().iternext(values=False)
                 if bytes(key).startswith(b"layer/")}  # fmt: skip
        assert found == named


def test_a_replaced_version_is_freed_without_a_garbage_collection(run: Any, tmp_path: Path) -> None:
    """A worker freezes what exists when it starts, so no collection would free it."""
    export(Rows(run, "base", 1, {5: 0.5}), path := tmp_path / "m")
    with Writer(path) as writer:
        writer.apply(Rows(run, "base", 2, {5: 1.5}))
    with Predictor(path, pin=1) as predictor:
        assert predictor._now is not None
        kept = weakref.ref(predictor._now), weakref.ref(predictor._now.models[0])
        predictor._pin = None
        gc.disable()
        try:
            assert predictor.refresh()
            assert [one() for one in kept] == [None, None]
        finally:
            gc.enable()


@pytest.mark.parametrize(("pass_number", "refused"), [(1, False), (2, True), (3, True)])
def test_only_an_earlier_pass_may_have_many_rows_less(
    run: Any, tmp_path: Path, pass_number: int, refused: bool
) -> None:
    first = Rows(run, "base", 2, dict.fromkeys(range(1, 11), 1.0))
    first.meta = {**first.meta, "pass_number": 2}
    export(first, path := tmp_path / "m")
    fewer = Rows(run, "base", 3, dict.fromkeys(range(1, 8), 1.0))
    fewer.meta = {**fewer.meta, "pass_number": pass_number}
    with Writer(path) as writer:
        if refused:
            with pytest.raises(TrainingError, match=r"has 3 rows less than the 10 that are"):
                writer.apply(fewer, most_fewer=0.2)
        else:
            assert writer.apply(fewer, most_fewer=0.2).version == 3


def test_rows_may_expire_if_others_take_their_places(run: Any, tmp_path: Path) -> None:
    export(Rows(run, "base", 2, dict.fromkeys(range(1, 11), 1.0)), path := tmp_path / "m")
    with Writer(path) as writer:
        others = Rows(run, "base", 3, dict.fromkeys(range(6, 15), 1.0))
        assert writer.apply(others, most_fewer=0.2).rows == 9


def test_a_version_that_does_not_follow_is_refused_and_both_are_named(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    with pytest.raises(StoreError, match="expected a base first"):
        export(Rows(run, "delta", 1, {1: 1.0}), path)
    assert list(tmp_path.iterdir()) == []
    export(Rows(run, "base", 5, {1: 1.0}), path)
    with pytest.raises(StoreError, match="is there already"):
        export(Rows(run, "base", 6, {1: 1.0}), path)
    with Writer(path) as writer:
        with pytest.raises(StoreError, match=r"holds version 5, .* 5; there is nothing new"):
            writer.apply(Rows(run, "delta", 5, {1: 2.0}))
        with pytest.raises(StoreError, match=r"holds version 5, .* 8, which follows version 7"):
            writer.apply(Rows(run, "delta", 8, {1: 2.0}, follows=7))
    assert served(path, [1]) == {1: 1.0}


def test_rollback_and_pin_change_what_is_shown_and_the_next_version_comes_after(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    export(Rows(run, "base", 1, {1: 1.0}), path)
    with Writer(path) as writer:
        for version in (2, 3):
            writer.apply(Rows(run, "delta", version, {1: float(version)}))
        assert writer.rollback().version == 2
    assert served(path, [1]) == {1: 2.0}
    with Writer(path) as writer:
        assert writer.pin(1).version == 1
        for version in (4, 5, 6, 7):  # more than are kept: what is pinned stays
            writer.apply(Rows(run, "delta", version, {1: float(version)}))
        with pytest.raises(StoreError, match="no version before"):
            writer.rollback()
    assert served(path, [1]) == {1: 1.0}
    with Writer(path) as writer:
        assert writer.unpin().version == 7
        with pytest.raises(StoreError, match=r"version 2 is not kept; .* are 4, 5, 6, 7"):
            writer.pin(2)
    assert served(path, [1]) == {1: 7.0}
    with Predictor(path, pin=5) as old, Predictor(path) as new:
        assert (old.version, new.version) == (5, 7)


def test_a_gate_keeps_a_worse_version_back_and_leaves_nothing_of_it(
    run: Any, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    files = [str(data / "test.txt")]
    export(run, path, gate=Gate(files, min_auc=0.5))
    version = run.meta["version"]
    with Predictor(path) as predictor:
        assert predictor.version == version
    keys = _keys(path)
    worse = Rows(run, "base", version + 1, {5: 1.0})
    with Writer(path) as writer:
        with pytest.raises(TrainingError, match=r"AUC 0\.\d+, expected 0\.99"):
            writer.apply(worse, gate=Gate(files, min_auc=0.99))
        with pytest.raises(
            TrainingError, match=r"COPC relative to the current version 0\.\d+, expected 0\.9999"
        ):
            writer.apply(worse, gate=Gate(files, Bounds(copc=(0.9999, 1.0001))))
        with pytest.raises(TrainingError, match=r"below 0\.\d+, that of the current version"):
            writer.apply(worse, gate=Gate(files, Bounds(max_auc_drop=1e-5)))
        one_class = tmp_path / "clicks.txt"
        lines = (data / "test.txt").read_text().splitlines(keepends=True)
        one_class.write_text("".join(line for line in lines if line.startswith("1 1 ")))
        with pytest.raises(TrainingError, match=r"AUC is not defined, because all \d+ labels"):
            writer.apply(worse, gate=Gate([str(one_class)], min_auc=0.1))
    assert _keys(path) == keys
    with Writer(path) as writer:
        writer.apply(worse, gate=Gate(files, Bounds(copc=(0.0, 11.0)), min_auc=0.1))
    with Predictor(path) as predictor:
        assert predictor.version == version + 1


def _keys(path: Path) -> list[bytes]:
    with ExportFile(path) as file, file.read() as txn:
        return [bytes(key) for key in txn.cursor().iternext(values=False)]


class _Dying(Rows):
    """Kills its process when half of it is written."""

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, chunk in enumerate(super().chunks()):
            if number == 80:
                os.kill(os.getpid(), signal.SIGKILL)
            yield chunk


_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.serving import conftest, test_versions
from paddlebox.serving.source import RunSource
with RunSource(Path(sys.argv[2])) as run:
    getattr(test_versions, sys.argv[1])(run, Path(sys.argv[3]))
"""


def _child(name: str, run_dir: Path, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, name, str(run_dir), str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def apply_and_die(run: Any, path: Path) -> None:
    from paddlebox.serving import layers as module

    module._TRANSACTION_BYTES = 1 << 16  # so that some of it is in the file
    with Writer(path) as writer:
        writer.apply(_Dying(run, "delta", 2, dict.fromkeys(range(1, 100_001), 2.0)))


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_the_old_version_and_the_next_one_tidies(
    run: Any, run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    export(Rows(run, "base", 1, {1: 1.0}), path)
    keys = _keys(path)
    child = _child("apply_and_die", run_dir, path)
    _, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == -signal.SIGKILL, errors
    assert len(_keys(path)) > len(keys)  # blocks that nothing names
    assert served(path, [1, 2]) == {1: 1.0}
    with Writer(path):
        pass
    assert _keys(path) == keys


def predict_until_stopped(_: Any, path: Path) -> None:
    """Prints each version met, and stops where a batch mixes two or goes back."""
    stop = path.with_name("stop")
    ids = np.arange(1, 65, dtype=np.uint64)
    with Predictor(path, follow_s=0.01) as predictor:
        slots = predictor.generation.slots
        offsets = np.arange(64 * slots + 1) // slots
        dense = np.zeros((64, predictor.generation.dense_width), np.float32)
        seen: list[float] = []
        while not stop.exists():
            batch = predictor.predict_feasigns(ids, offsets, dense)
            assert len(set(batch.tolist())) == 1, batch
            if not seen or seen[-1] != batch[0]:
                assert batch[0] not in seen
                seen.append(float(batch[0]))
                print(predictor.version, flush=True)
    print("end", flush=True)


@pytest.mark.long
def test_processes_follow_a_writer_and_one_that_is_killed_holds_nothing_up(
    run: Any, run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    weights = dict.fromkeys(range(1, 2001), 0.02)
    export(Rows(run, "base", 1, weights), path)
    readers = [_child("predict_until_stopped", run_dir, path) for _ in range(3)]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline().strip() == "1", reader.stderr
        for version in range(2, 13):
            with Writer(path) as writer:
                changed = dict.fromkeys(weights, version / 50)
                writer.apply(Rows(run, "delta", version, changed))
            if version == 5:
                readers[0].kill()  # in a read transaction
                readers[0].wait()
            time.sleep(0.05)
        size = path.stat().st_size
        for version in range(13, 25):  # pages of old versions are used again
            with Writer(path) as writer:
                writer.apply(Rows(run, "delta", version, dict.fromkeys(weights, version / 50)))
            time.sleep(0.05)
        assert path.stat().st_size < 2 * size
        deadline = time.monotonic() + PATIENCE_S
        with Writer(path) as writer:
            while len(writer._file.env.readers().splitlines()) > 3:  # a title, and two that live
                assert time.monotonic() < deadline, writer._file.env.readers()
                time.sleep(0.05)
        time.sleep(0.2)
        path.with_name("stop").touch()
        for reader in readers[1:]:
            out, errors = reader.communicate(timeout=PATIENCE_S)
            lines = out.split()
            assert reader.returncode == 0, errors
            assert lines[-1] == "end"
            assert lines[-2] == "24"
    finally:
        for reader in readers:
            if reader.poll() is None:
                reader.kill()
            reader.communicate()


def test_one_process_writes_at_a_time_and_not_where_it_reads(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "m"
    export(Rows(run, "base", 1, {1: 1.0}), path)
    with Predictor(path), pytest.raises(StoreError, match="write to it from another"):
        Writer(path)
    with Writer(path), pytest.raises(StoreLockedError):
        Writer(path)
    with pytest.raises(StoreError, match="expected an export file, found none"):
        Predictor(tmp_path / "nothing")


@pytest.mark.slow
def test_the_tool_exports_a_commit_brings_a_newer_one_in_and_rolls_back(
    run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    newest = json.loads((run_dir / "summary.json").read_text())["version"]  # a pass, or a merge

    def ran(*arguments: Any) -> Any:
        done = tool("export", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = ran(run_dir, "--out", path, "--version", 1, "--precision", "float16")
    assert (first["version"], first["pass_number"], first["precision"]) == (1, 1, "float16")
    second = ran(path, "--apply", run_dir)
    assert second["version"] == newest
    assert len(second["layers"]) == 2
    whole = ran(run_dir, "--out", tmp_path / "whole", "--precision", "float16")
    assert whole["version"] == newest
    # What differs between two commits, laid over the first, serves what the second does.
    probe = list(range(1, 3000))
    assert served(path, probe) == served(tmp_path / "whole", probe)
    assert ran(path, "--rollback")["version"] == 1
    shown = ran(path, "--show")
    assert shown["head"]["current"] == first["generation"]
    failed = tool("export", path, "--apply", run_dir)
    assert failed.returncode in (2, 4)
    assert f"holds version {newest}" in failed.stderr
    assert "Traceback" not in failed.stderr
    restored = tmp_path / "restored"  # holds a store and nothing else
    with VersionStore.open_reader(run_dir / "store") as manifest:
        record = manifest.newest()
        assert record is not None
        copy_version(str(run_dir / "store"), record, str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), restored)
    assert not (restored / "config.json").exists()
    assert ran(restored, "--out", tmp_path / "again")["version"] == newest
    assert served(tmp_path / "again", probe) == served(tmp_path / "whole", probe)
    config = tmp_path / "other.yaml"
    config.write_text((run_dir / "config.json").read_text().replace('"hidden": [', '"hidden": [8,'))
    failed = tool("export", restored, "--out", tmp_path / "x", "-c", config)
    assert failed.returncode == 2
    assert "trained with another configuration" in failed.stderr
    assert "model.hidden: was [16], now [8, 16]" in failed.stderr
    failed = tool("export", tmp_path, "--out", tmp_path / "x")
    assert failed.returncode in (2, 4)
    assert "is no run dir" in failed.stderr
