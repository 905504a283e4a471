"""Predictions of an export are those of the training program over the rows that were saved."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.config import Config
from paddlebox.config.check import validate
from paddlebox.errors import CorruptionError, DataError, StoreError
from paddlebox.serving import Predictor
from paddlebox.serving import predictor as predictor_module
from paddlebox.serving.generation import OpenGeneration
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import export
from tests.conftest import PATIENCE_S, ROOT
from tests.serving.conftest import FEATURES, Rows, instances_of
from tests.support.marks import long

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # configs name their slots from there


def evaluation(run_dir: Path, test_file: Path, in_new_process: Callable[..., Any]) -> np.ndarray:
    """What the training program predicts for a file, (B) float32."""
    code = """
import json, sys
from pathlib import Path
from paddlebox.config import Config, Slots
from paddlebox.config.check import validate
from paddlebox.launch import cpu
config = validate(Config, json.loads(Path(sys.argv[1], "config.json").read_text()), "config")
cpu.apply(config.trainer.program, config.trainer.dense_threads)
from paddlebox.training import opening
from paddlebox.training.metrics import sigmoid
from paddlebox.training.runner import build_runner
slots = validate(Slots, json.loads(Path(sys.argv[1], "slots.json").read_text()), "slots")
with opening.open_table(config, Path(sys.argv[1], "store"), read_only=True) as table:
    runner = build_runner(config, slots)
    runner.load_dense_state(table.load_dense())
    dataset = opening.create_dataset(config, slots, table, test=True)
    dataset.preload([sys.argv[2]])
    dataset.begin_pass()
    out = []
    for feed in dataset.batches():
        out += sigmoid(runner.evaluate_step(feed)[1]).ravel().tolist()
    dataset.end_pass()
    dataset.close()
print(json.dumps(out))
"""
    return np.array(in_new_process(code, str(run_dir), str(test_file)), np.float32)


MODELS = {
    "deepfm_cvm": [],
    "dnn": ["model.type=dnn", "model.use_cvm=false", "table.embedx_dim=5", "data.shuffle=false"],
    "per_slot": ["data.key_space=per_slot", "trainer.program=dygraph"],
    "shares": ["data.key_space=per_slot", "model.type=dnn"],  # history has the ids of item
}


@pytest.mark.slow
@pytest.mark.parametrize("model", [m if m == "dnn" else long(m) for m in MODELS])
def test_predictions_equal_the_training_programs_over_the_saved_rows(
    model: str, train: Callable[..., Path], data: Path, tmp_path: Path, in_new_process: Any
) -> None:
    overrides = MODELS[model]
    keyed_as = list(range(len(FEATURES) - 1))
    if model == "shares":
        slots = Path("datasets/synthetic/slots.yaml").read_text()
        plain = "{name: history, type: sparse"
        (tmp_path / "slots.yaml").write_text(slots.replace(plain, f"{plain}, shares: item"))
        overrides = [*overrides, f"data.slots={tmp_path / 'slots.yaml'}"]
        keyed_as[FEATURES.index("history") - 1] = FEATURES.index("item") - 1
    run_dir = train("data.batch_size=256", *overrides)
    with RunSource(run_dir, threshold=0.35) as source:
        kept: list[np.ndarray] = []
        source.visit(lambda feasigns, _: kept.append(feasigns))
        export(source, tmp_path / "m.export")
    saved = {int(feasign) for feasign in np.concatenate(kept)}
    config = validate(Config, json.loads((run_dir / "config.json").read_text()), "config")
    # The same file without the feasigns that are not served.
    instances = instances_of(data / "test.txt")
    lines = []
    for fields in instances:
        words = ["1 0"]
        for slot, name in enumerate(FEATURES):
            values = fields[name]
            if name != "dense":
                if config.data.key_space == "per_slot":
                    number = keyed_as[slot - 1]
                    values = [v for v in values if core.feasign_in_slot(v, number) in saved]
                else:
                    values = [v for v in values if v in saved]
            words.append(" ".join(map(str, [len(values), *values] if values else [1, 0])))
        lines.append(" ".join(words))
    left = tmp_path / "left.txt"
    left.write_text("\n".join(lines) + "\n")
    assert left.read_text().count(" 1 0") > 500  # the filter does leave rows out
    expected = evaluation(run_dir, left, in_new_process)

    with Predictor(tmp_path / "m.export") as predictor:
        whole = predictor.predict(instances)
        assert whole.dtype == np.float32
        assert np.abs(whole - expected).max() < 1e-6
        assert len(set(whole.round(5))) > 500
        one_by_one = np.concatenate([predictor.predict([fields]) for fields in instances[:50]])
        assert np.abs(one_by_one - expected[:50]).max() < 1e-6
        assert predictor.predict([]).shape == (0,)


def test_16_and_8_bits_are_close_and_take_less_room(
    run_dir: Path, data: Path, tmp_path: Path
) -> None:
    instances = instances_of(data / "test.txt")
    found = {}
    for precision in ("float32", "float16", "int8"):
        with RunSource(run_dir) as source:
            export(source, tmp_path / precision, precision=precision)
        with Predictor(tmp_path / precision) as predictor:
            found[precision] = predictor.predict(instances)
    sizes = {precision: (tmp_path / precision).stat().st_size for precision in found}
    assert np.abs(found["float16"] - found["float32"]).max() < 1e-4
    assert 0 < np.abs(found["int8"] - found["float32"]).max() < 1e-2
    assert sizes["int8"] < sizes["float16"] < sizes["float32"]


def test_feasigns_and_offsets_give_what_raw_fields_give(
    run_dir: Path, data: Path, tmp_path: Path
) -> None:
    with RunSource(run_dir) as source:
        export(source, tmp_path / "m")
    instances = instances_of(data / "test.txt")[:64]
    lists = [fields[name] for fields in instances for name in FEATURES[1:]]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    dense = np.array([fields["dense"] for fields in instances], np.float32)
    with Predictor(tmp_path / "m") as predictor:
        flat = np.array([v for one in lists for v in one], np.uint64)
        fast = predictor.predict_feasigns(flat, offsets, dense)
        assert np.array_equal(fast, predictor.predict(instances))
        with pytest.raises(ValueError, match="offsets: expected ascending values"):
            predictor.predict_feasigns(flat[:-1], offsets, dense)
        with pytest.raises(ValueError, match="B \\* 10"):
            predictor.predict_feasigns(flat, offsets, None)


def test_a_wrong_field_is_named_and_an_absent_one_is_empty(run_dir: Path, tmp_path: Path) -> None:
    with RunSource(run_dir) as source:
        export(source, tmp_path / "m")
    with Predictor(tmp_path / "m") as predictor:
        good = {"dense": [0.1, 0.2, 0.3, 0.4], "user": 7}
        assert predictor.predict([good]) == predictor.predict([{**good, "item": None, "tags": []}])
        for wrong, text in {
            "usr": "instance 1: no slot reads a field 'usr'; did you mean 'user'",
            "item": "instance 1: slot 'item': 'x' is not",
            "tags": "instance 1: field 'tags': 'a\\\\nb' holds a line break",
        }.items():
            value = {"tags": "a\nb"}.get(wrong, "x")
            with pytest.raises(DataError, match=text):
                predictor.predict([good, {**good, wrong: value}])
        with pytest.raises(DataError, match="slot 'dense'"):
            predictor.predict([{"user": 7}])


def test_a_damaged_block_is_named_and_never_read_as_rows(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    with RunSource(run_dir) as source:
        chunks: list[np.ndarray] = []
        source.visit(lambda feasigns, _: chunks.append(feasigns))
        export(source, path)
    feasign = int(chunks[0][len(chunks[0]) // 2])
    content = bytearray(path.read_bytes())
    at = content.find(core.mix(feasign).to_bytes(8, "little"))
    assert at > 0
    content[at + 20] ^= 1
    path.write_bytes(content)
    fields = {"dense": [0, 0, 0, 0], "user": feasign}
    with Predictor(path) as predictor, pytest.raises(CorruptionError, match=r"block .* of layer"):
        predictor.predict([fields])


@pytest.mark.slow
def test_threads_predict_at_once_while_versions_come(run: Any, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    export(run, path)
    instances = instances_of(data / "test.txt")[:40]
    with Predictor(path, follow_s=0) as predictor, ThreadPoolExecutor(4) as pool:
        expected = predictor.predict(instances)
        # The generation is reopened during the requests, as if a new one had arrived.
        done = [pool.submit(predictor.predict, instances) for _ in range(100)]
        for _ in range(5):
            assert predictor._now is not None
            predictor._now.record = dataclasses.replace(predictor._now.record, generation=0)
            assert predictor.refresh()
        for one in done:
            assert np.array_equal(one.result(), expected)
        assert predictor._open == 1  # the others were let go
    with pytest.raises(StoreError, match="is closed"):
        predictor.predict(instances)


def _predict_after_fork(predictor: Predictor, queue: Any) -> None:
    try:
        predictor.predict([{"dense": [0, 0, 0, 0]}])
        queue.put("nothing")
    except StoreError as error:
        queue.put(str(error))


def test_a_predictor_of_before_a_fork_is_refused(run_dir: Path, tmp_path: Path) -> None:
    with RunSource(run_dir) as source:
        export(source, tmp_path / "m")
    context = multiprocessing.get_context("fork")
    with Predictor(tmp_path / "m") as predictor:
        queue = context.Queue()
        # Else the child may collect garbage of other tests, and Paddle's dies without its threads.
        gc.freeze()
        child = context.Process(target=_predict_after_fork, args=(predictor, queue))
        child.start()
        assert "opened before a fork" in queue.get(timeout=60)
        child.join()
        gc.unfreeze()


def test_a_predictor_that_cannot_follow_says_so_tries_again_and_goes_on(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tries = tmp_path / "m", []
    monkeypatch.setattr("paddlebox.serving.predictor._MOST_WAIT_S", 0.02)
    export(Rows(run, "base", 1, {5: 0.5}), path)
    opened = OpenGeneration

    def full(*arguments: Any) -> Any:
        tries.append(1)
        raise (OSError(errno.ENOSPC, "No space left"), KeyError("x"), CorruptionError("y"))[
            len(tries) % 3
        ]

    with Predictor(path, follow_s=0.005) as predictor:
        wanted = predictor._wanted
        monkeypatch.setattr(predictor_module, "OpenGeneration", full)
        newer: Any = lambda txn: dataclasses.replace(wanted(txn), version=2)  # noqa: E731
        monkeypatch.setattr(predictor, "_wanted", newer)
        wait_until(lambda: len(tries) > 4)
        assert predictor.trouble
        assert predictor.version == 1
        assert len(predictor.predict([{"dense": [0, 0, 0, 0], "user": 5}])) == 1
        monkeypatch.setattr(predictor_module, "OpenGeneration", opened)
        wait_until(lambda: predictor.version == 2)
        wait_until(lambda: not predictor.trouble)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)
