"""The serving library feeds the dense part what Predictor does, and follows versions."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config, Slots
from paddlebox.errors import ConfigError
from paddlebox.serving import Predictor
from paddlebox.serving.file import ExportFile, model_key
from paddlebox.serving.writer import Writer, export, export_ensemble
from paddlebox.store.files import seal
from tests.conftest import ROOT
from tests.serving.made_export import MadeSource
from tests.support import serving_library as library
from tests.support.configs import make_config, make_slots
from tests.support.serving_library import Server, ServingError

Instances = list[dict[str, Any]]
random_of = random.Random


def of_csv(count: int) -> Instances:
    pick = random_of(5)
    return [
        {
            "age": pick.choice([None, 17, "40", 250.5, -3]),
            "user": pick.choice(["", f"u{pick.randrange(9)}", pick.randrange(9)]),
            "items": pick.choice([[], "3|4|5|6", [7, 2**64 - 1], "9"]),
            "tags": pick.choice([None, "1:0.5|2:0", ["3:2", 4], [0, "5:9"]]),
            "at": f"2024-01-{pick.randrange(1, 29):02d} 07:30:00",
            "more": 1,
        }
        for _ in range(count)
    ]


CSV = make_slots(
    click="label",
    more="weight",
    age={"type": "dense", "default": 30, "clip": [0, 100], "log1p": True},
    years={"type": "dense", "expr": "hour(at, 'Asia/Shanghai') * 0.5"},
    user={"hash": True, "default": "nobody"},
    friend={"column": "user", "hash": True, "shares": "user"},
    items={"max_length": 3, "pooling": "sqrtn"},
    tags={"weighted": True, "pooling": "mean"},
    hour={"expr": "hour(at, 'Asia/Shanghai')", "hash": True},
    age_range={"bucket": {"of": "age", "boundaries": [18, 30.5, 50]}},
    user_age={"cross": ["user", "age_range"], "max_length": 4},
)
HISTORY = make_slots(
    click="label", price="dense", user={}, history={"max_length": 4}, item={}, shop={}
)
TABLES = make_slots(
    click="label", price="dense", user={"table": "wide"}, item={}, shop={"table": "wide"}, word={}
)
CRITEO = make_slots(
    label="label",
    **{f"I{i}": {"type": "dense"} for i in (1, 2)},
    **{f"C{i}": {} for i in (1, 2)},
    clicks={"column": "I3"},
)
COLUMNS = make_slots(click="label", price="dense", user={}, word={"hash": True}, items={})


def of_history(count: int) -> Instances:
    pick = random_of(6)
    return [
        {
            "price": pick.random(),
            "user": pick.randrange(1, 9),
            "history": [pick.randrange(1, 20) for _ in range(pick.randrange(5))],
            "item": pick.randrange(1, 20),
            "shop": pick.randrange(1, 5),
        }
        for _ in range(count)
    ]


def of_tables(count: int) -> Instances:
    pick = random_of(7)
    names = ("user", "item", "shop", "word")
    return [
        {"price": pick.random(), **{name: pick.randrange(1, 30) for name in names}}
        for _ in range(count)
    ]


def of_criteo(count: int) -> Instances:
    pick = random_of(8)
    return [
        {
            "I1": pick.randrange(99),
            "I2": str(pick.randrange(99)),
            "I3": pick.choice([None, 1, 70]),
            "C1": f"{pick.randrange(20):08x}",
            "C2": "",
        }
        for _ in range(count)
    ]


def of_columns(count: int) -> Instances:
    pick = random_of(9)
    return [
        {
            "price": pick.choice([1, 2.5, "3"]),
            "user": pick.choice([-1, 5, "-7"]),
            "word": pick.choice(["a\tb", "a|b", 7, 2.5, '"quoted"']),
            "items": [pick.randrange(1, 9), -3],
        }
        for _ in range(count)
    ]


DEEPFM = {"type": "deepfm", "hidden": [8], "use_cvm": True}
DIN = {"type": "din", "hidden": [8], "attention_hidden": [4], "history": {"history": "item"}}
RANGES = {"dense_ranges": [[0.2, 0.7]]}
CASES: dict[str, tuple[Slots, Callable[[int], Instances], dict[str, Any]]] = {
    "csv": (CSV, of_csv, {"model": DEEPFM}),
    "per_slot": (CSV, of_csv, {"model": DEEPFM, "data": {"key_space": "per_slot"}}),
    "sequences": (HISTORY, of_history, {"model": DIN}),
    "click_prior": (
        HISTORY,
        of_history,
        {"model": {**DIN, "click_prior": True, "dense_scale": [[0.5, 2]], **RANGES}},
    ),
    "tables": (
        TABLES,
        of_tables,
        {"model": {"type": "dnn", "hidden": [8]}, "extra_tables": {"wide": {"embedx_dim": 3}}},
    ),
    "criteo": (CRITEO, of_criteo, {"model": DEEPFM, "data": {"format": "criteo_tsv"}}),
    "columns": (
        COLUMNS,
        of_columns,
        {"model": {**DEEPFM, "use_cvm": False}, "data": {"format": "parquet"}},
    ),
}


def made(name: str, count: int = 64) -> tuple[Config, Slots, Instances]:
    slots, instances_of, sections = CASES[name]
    table = {"embedx_dim": 4}
    return make_config(table=table, **sections), slots, instances_of(count)


def written(path: Path, name: str = "tables", version: int = 1, onnx: bool = False) -> Instances:
    config, slots, instances = made(name)
    export(MadeSource(config, slots, instances, version), path, onnx=onnx)
    return instances


def fed(predictor: Predictor, instances: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """What Predictor feeds to the dense part."""
    with predictor._using() as generation:
        model = generation.models[0]
        parsed = model._fields.parse(instances)
        room = np.empty((len(instances), model._inputs.width), np.float32)
        model._inputs.fill_parsed(parsed, room)
        return room


@pytest.mark.parametrize("name", CASES)
def test_the_dense_part_gets_the_same_bits_and_onnx_predicts_the_same(
    name: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, (config, slots, instances) = tmp_path / "m.export", made(name)
    precision = {"csv": "float16", "tables": "int8"}.get(name, "float32")
    export(MadeSource(config, slots, instances), path, precision=precision, onnx=True)
    with Server(path) as server, server.version() as version, Predictor(path) as predictor:
        version.warm()
        found, expected = version.fill(instances), fed(predictor, instances)
        assert found.tobytes() == expected.tobytes()
        assert np.ptp(found, axis=0).any()
        session = onnxruntime.InferenceSession(version.onnx)
        predicted = predictor.predict(instances).reshape(len(instances), -1)
        for batch in (slice(None), slice(1)):
            answer = session.run(["probability"], {"box_input": found[batch]})[0]
            np.testing.assert_allclose(answer, predicted[batch], rtol=0, atol=1e-5)
        about = version.about
        assert (about.version, about.day, about.model) == (1, 7, b"run")
        assert about.tasks == answer.shape[1]


def test_a_field_has_the_text_that_predictor_sends(tmp_path: Path) -> None:
    """Errors too, but for the names of Python's types."""
    path, pick = tmp_path / "m.export", random_of(3)
    instances = written(path, "csv")
    values = [1, 0, -1, 1.0, 2.5, 1e22, "", "a", "1.0", "x\ny", "é", [1, 2], [2.5], ["a", "b|c"]]
    with Server(path) as server, server.version() as version, Predictor(path) as predictor:
        for _ in range(300):
            instance = dict(pick.choice(instances))
            instance[pick.choice(["age", "user", "items", "tags", "usr"])] = pick.choice(values)
            try:
                expected: Any = fed(predictor, [instance]).tobytes()
            except Exception as error:
                expected = str(error)
            try:
                found: Any = version.fill([instance]).tobytes()
            except ServingError as error:
                found = str(error)
            if isinstance(expected, bytes):
                assert found == expected
            else:
                assert isinstance(found, str), (instance, expected)
                names = [re.sub("[^a-z]+", " ", text.split(":")[0]) for text in (found, expected)]
                assert names[0].split()[:1] == names[1].split()[:1] == ["instance"]


def test_versions_follow_a_writer_and_are_kept_while_they_are_in_use(tmp_path: Path) -> None:
    path = tmp_path / "m.export"
    config, slots, instances = made("tables")
    written(path)
    with Server(path) as server:
        with server.version() as old:
            before = old.fill(instances)
            with Writer(path) as writer:
                for number in range(2, 9):
                    writer.apply(MadeSource(config, slots, instances, number))
                kept = [g.version for g in writer.generations()[1]]
                assert kept == [1, 5, 6, 7, 8]  # 1 is leased
            assert server.refresh()
            assert not server.refresh()
            with server.version() as new:
                assert new.about.version == 8
                assert new.fill(instances).tobytes() != before.tobytes()
            assert old.fill(instances).tobytes() == before.tobytes()
        with Writer(path) as writer:
            writer.apply(MadeSource(config, slots, instances, 9))
            assert [g.version for g in writer.generations()[1]] == [6, 7, 8, 9]
        assert server.refresh()
        with Writer(path) as writer:
            writer.rollback()
        assert server.refresh()
        with server.version() as version:
            assert version.about.version == 8
    with Server(path, pin=6) as server, server.version() as version:
        assert version.about.version == 6
    with pytest.raises(ServingError, match="version 1 is not kept; the kept versions are 6, 7, 8"):
        Server(path, pin=1)


def test_a_whole_file_renamed_onto_an_open_one_is_opened(tmp_path: Path) -> None:
    path, other = tmp_path / "m.export", tmp_path / "other"
    written(path)
    with Server(path) as server:
        written(other, version=5)
        os.rename(other, path)
        assert server.refresh()
        with server.version() as version:
            assert version.about.version == 5


def test_a_version_that_on_version_refuses_is_not_shown(tmp_path: Path) -> None:
    path, seen = tmp_path / "m.export", list[int]()
    config, slots, instances = made("tables")
    written(path)

    def prepare(version: library.Version) -> int:
        seen.append(version.about.version)
        return int(version.about.version == 2)

    with Server(path, on_version=prepare) as server:
        with Writer(path) as writer:
            writer.apply(MadeSource(config, slots, instances, 2))
        with pytest.raises(ServingError, match="version 2: on_version refused it"):
            server.refresh()
        with pytest.raises(ServingError, match="on_version refused it"):
            server.check()
        with server.version() as version:
            assert version.about.version == 1
    assert seen == [1, 2]


SWAPS = """
import sys
from pathlib import Path
from tests.serving.made_export import MadeSource
from tests.serving.test_serving_library import made
from paddlebox.serving.writer import Writer
config, slots, instances = made("tables")
source = MadeSource(config, slots, instances)
dense = source.dense()
with Writer(Path(sys.argv[1])) as writer:
    for version in range(2, int(sys.argv[2]) + 1):
        source = MadeSource(config, slots, instances, version)
        source.dense = lambda: dense
        writer.apply(source)
"""


def swap_under_load(path: Path, versions: int) -> None:
    """A writer in another process; three threads that ask, and one that follows."""
    instances = written(path)
    stop, failures, answers = threading.Event(), list[BaseException](), [0]
    of_version: dict[int, bytes] = {}

    def ask() -> None:
        try:
            while not stop.is_set():
                with server.version() as version:
                    found = version.fill(instances[:4]).tobytes()
                    assert of_version.setdefault(version.about.version, found) == found
                    answers[0] += 1
        except BaseException as error:
            failures.append(error)

    with Server(path, follow_ms=1) as server:
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        run = subprocess.run(
            [sys.executable, "-c", SWAPS, str(path), str(versions)],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        server.refresh()
        stop.set()
        for thread in threads:
            thread.join()
        assert run.returncode == 0, run.stderr
        assert not failures, failures
        server.check()
        with server.version() as version:
            assert version.about.version == versions
    assert answers[0] > versions
    assert len(of_version) > versions / 10
    assert len(set(of_version.values())) == len(of_version)


@pytest.mark.slow
def test_versions_are_swapped_under_load(tmp_path: Path) -> None:
    swap_under_load(tmp_path / "m.export", 20)


@pytest.mark.long
def test_600_versions_are_swapped_under_load(tmp_path: Path) -> None:
    swap_under_load(tmp_path / "m.export", 600)


def test_what_the_library_does_not_serve_is_said_at_open(tmp_path: Path) -> None:
    path = tmp_path / "m.export"
    with pytest.raises(ServingError, match="expected an export file, found none") as missing:
        Server(path)
    assert missing.value.code == library.NOT_FOUND
    written(path)
    with (
        Server(path) as server,
        server.version() as version,
        pytest.raises(ServingError, match="has no ONNX model") as without,
    ):
        _ = version.onnx
    assert without.value.code == library.FAILED_PRECONDITION
    config, slots, instances = made("tables")
    sources = [nullcontext(MadeSource(config, slots, instances, n)) for n in (1, 2)]
    export_ensemble(sources, tmp_path / "two")
    with pytest.raises(ServingError, match="is an ensemble of 2 models") as several:
        Server(tmp_path / "two")
    assert several.value.code == library.FAILED_PRECONDITION


def test_the_mean_over_the_exports_of_runs_is_their_ensemble(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    config, slots, instances = made("tables")
    sources = [MadeSource(config, slots, instances, number) for number in (1, 2)]
    alone = []
    for number, source in enumerate(sources):
        path = tmp_path / str(number)
        export(source, path, onnx=True)
        with Server(path) as server, server.version() as version:
            session = onnxruntime.InferenceSession(version.onnx)
            alone.append(session.run(None, {"box_input": version.fill(instances)})[0])
    mean = np.asarray(np.mean(alone, axis=0, dtype=np.float64), np.float32)
    export_ensemble([nullcontext(source) for source in sources], tmp_path / "both")
    with Predictor(tmp_path / "both") as predictor:
        expected = predictor.predict(instances)
    assert np.abs(alone[0] - alone[1]).max() > 1e-3
    np.testing.assert_allclose(mean[:, 0], expected, rtol=0, atol=1e-5)


def test_a_damaged_or_half_written_file_is_an_error_and_the_old_version_stays(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "m.export", tmp_path / "copy"
    config, slots, instances = made("tables")
    written(path)
    shutil.copy(path, copy)
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ServingError) as half:
        Server(copy)
    assert half.value.code == library.CORRUPTION
    with Server(path) as server, server.version() as version:
        expected = version.fill(instances)
        with Writer(path) as writer:
            record = writer.apply(MadeSource(config, slots, instances, 2))
        with ExportFile(path, write=True) as file, file.env.begin(write=True) as txn:
            key = model_key(record.model, "feed")
            payload = bytes(txn.get(key))
            txn.put(key, payload[:-2] + b"!}")
        with pytest.raises(ServingError, match=r"feed is damaged: its CRC32C is wrong") as damaged:
            server.refresh()
        assert damaged.value.code == library.CORRUPTION
        with ExportFile(path, write=True) as file, file.env.begin(write=True) as txn:
            feed = json.loads(payload[4:])
            feed["poolings"] = ["mean"]
            txn.put(key, seal(json.dumps(feed).encode()))
        with pytest.raises(ServingError, match=r"contradict each other.*poolings: expected one"):
            server.refresh()
        with server.version() as still:
            assert still.fill(instances).tobytes() == expected.tobytes()


def test_onnx_is_kept_by_later_versions_and_an_unmapped_operator_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from paddlebox.serving import onnx_model

    path = tmp_path / "m.export"
    config, slots, instances = made("tables")
    written(path, onnx=True)
    with Server(path) as server:
        with server.version() as version:
            first = version.onnx
        with Writer(path) as writer:
            writer.apply(MadeSource(config, slots, instances, 2))
        assert server.refresh()
        with server.version() as version:
            assert len(version.onnx) == len(first)
    mapped = dict(onnx_model._SAME)
    try:
        del onnx_model._SAME["relu"]
        with pytest.raises(ConfigError, match=r"the operator relu of .* has no ONNX form"):
            written(tmp_path / "other", onnx=True)
    finally:
        onnx_model._SAME.update(mapped)
    assert not (tmp_path / "other").exists()
