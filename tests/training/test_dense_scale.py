"""Dense features are scaled as the first rows say, in training, evaluation and exports alike."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Config
from paddlebox.config.stored import with_stored
from paddlebox.data.first_look import FirstLook
from paddlebox.errors import ConfigError
from paddlebox.store.group import ONE_RANK
from paddlebox.training.plan import plan_passes
from paddlebox.training.resume import ResumeRequest
from paddlebox.training.settle import settled
from tests.conftest import run_python, tool
from tests.support.configs import make_config, make_slots, write_config, write_slots
from tests.support.marks import long

SLOTS = make_slots(
    click="label",
    price={"type": "dense", "log1p": True, "default": 0},
    bought="label",
    sizes={"type": "dense", "dim": 2},
    user={"hash": True},
)
# price is 0, 0, e - 1 and e - 1 once it is read: its logarithms have mean and deviation 0.5.
ROWS = [("", 3), ("0", 5), (str(math.e - 1), 3), (str(math.e - 1), 5)]
SCALES = ((0.5, 0.5), (4.0, 1.0), (7.0, 1.0))  # the third feature is always 7


def config(path: Path, data_format: str = "csv", **changes: Any) -> Config:
    data = {"format": data_format, "train_files": [str(path)]}
    return make_config(data=data, **{"model": {"type": "mmoe"}, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [f"1,{price},0,{size}|7,u" for price, size in ROWS]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["click,price,bought,sizes,user", *lines]))
    return path


def settle(own: Config, run_dir: Path, source: dict[str, Any] | None = None) -> Config:
    return settled(ResumeRequest(run_dir, own, SLOTS), plan_passes(own), ONE_RANK, source)


def test_scales_are_mean_and_deviation_of_the_features_that_the_model_sees(file: Path) -> None:
    found = FirstLook(config(file), SLOTS).numbers([str(file)], 100).scales
    assert np.allclose(found, SCALES, rtol=1e-5)


def test_packed_text_and_columns_have_the_same_scales(file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert np.allclose(
        FirstLook(config(packed), SLOTS).numbers([str(packed)], 100).scales, SCALES, rtol=1e-5
    )
    columns = tmp_path / "rows.parquet"
    table = {
        "click": [1.0] * 4,
        "price": [float(price or 0) for price, _ in ROWS],
        "bought": [0.0] * 4,
        "sizes": [[float(size), 7.0] for _, size in ROWS],
        "user": ["u"] * 4,
    }
    pq.write_table(pa.table(table), columns)
    found = FirstLook(config(columns, "parquet"), SLOTS).numbers([str(columns)], 100).scales
    assert np.allclose(found, SCALES, rtol=1e-5)


def test_only_the_first_rows_are_looked_at(file: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "never-read.csv")
    assert FirstLook(config(file), SLOTS).numbers([str(file), missing], 4).scales


def test_a_new_run_chooses_them_and_a_later_start_continues_with_them(
    file: Path, tmp_path: Path
) -> None:
    made = settle(config(file), tmp_path / "run")
    assert np.allclose(made.model.dense_scales, SCALES, rtol=1e-5)
    stored = made.model_dump(mode="json")
    for named in ({"type": "mmoe"}, {"type": "mmoe", "dense_scale": "auto"}):
        later = with_stored(config(file, model=named), stored, "the run")
        assert later.model.dense_scales == made.model.dense_scales


def test_named_settings_are_kept_and_a_custom_layer_gets_those_of_the_data(
    file: Path, tmp_path: Path
) -> None:
    none = config(file, model={"type": "mmoe", "dense_scale": "none"})
    assert settle(none, tmp_path / "run").model.dense_scales == ()
    custom = {"type": "custom", "layer": "my/file.py:Layer"}
    own = config(file, model=custom, security={"allow_commands": True})
    assert settle(own, tmp_path / "run").model.dense_scale == "none"


def test_a_warm_start_scales_as_its_source_did(file: Path, tmp_path: Path) -> None:
    scales = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    source = config(file, model={"type": "mmoe", "dense_scale": scales}).model_dump(mode="json")
    made = settle(config(file), tmp_path / "run", source=source)
    assert made.model.dense_scale == tuple(map(tuple, scales))
    source["model"]["dense_scale"] = scales[:1]  # of other features
    made = settle(config(file), tmp_path / "run", source=source)
    assert np.allclose(made.model.dense_scales, SCALES, rtol=1e-5)


def test_scales_of_other_features_are_refused(file: Path) -> None:
    from paddlebox.models import create_model

    wrong = config(file, model={"type": "lr", "dense_scale": [[0.0, 1.0]]}).model
    with pytest.raises(ConfigError, match=r"model\.dense_scale has 1 entries, .* 3 dense features"):
        create_model(wrong, slots=1, embedx_dim=2, dense_width=3)


def test_a_deviation_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dense_scale"):
        config(Path("a"), model={"type": "lr", "dense_scale": [[0.0, 0.0]]})


def test_a_scaled_model_is_the_model_of_scaled_features_and_leaves_lengths_alone() -> None:
    from paddlebox import ops
    from paddlebox.models.encoded_dense import EncodedDense

    paddle = ops.paddle
    paddle.disable_static()

    class Sees(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def forward(self, *inputs: Any) -> Any:
            return inputs[4]

        def loss(self, logits: Any, label: Any) -> str:
            return "its own"

    scaled = EncodedDense(Sees(), [(1.0, 2.0), (3.0, 0.5)])
    dense = paddle.to_tensor(np.array([[1, 3, 9], [5, 4, 8]], np.float32))
    seen = scaled(None, None, None, None, dense).numpy()
    assert seen.tolist() == [[0, 0, 9], [2, 2, 8]]
    assert scaled.loss(None, None) == "its own"
    assert not scaled.parameters()


@pytest.mark.slow
# dnn: the kernel puts dense behind the slots
@pytest.mark.parametrize("model", ["deepfm", long("dnn")])
def test_training_evaluation_and_an_export_scale_alike(tmp_path: Path, model: str) -> None:
    """The label depends on one large number, which an unscaled network does not learn from."""
    rng = np.random.default_rng(1)
    years = rng.integers(1950, 2020, 4000)
    clicks = rng.random(4000) < np.where(years > 1985, 0.9, 0.1)
    lines = [f"{int(c)},{y},u{y % 7}" for c, y in zip(clicks, years, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["click,year,user", *lines[:3000]]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join(["click,year,user", *lines[3000:]]) + "\n")
    write_slots(tmp_path, click="label", year="dense", user={"hash": True})
    data = {"test_files": [f"{tmp_path}/test.csv"]}
    config = write_config(tmp_path, data=data, model={"type": model})
    run = tmp_path / "run"
    for done in (
        tool("train", "-c", config, "--run-dir", run),
        tool("evaluate", run, "--dump", tmp_path / "dump.parquet"),
        tool("export", run, "--out", tmp_path / "file"),
    ):
        assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["model"]["dense_scale"]
    assert np.allclose(stored, [[years[:3000].mean(), years[:3000].std()]], rtol=1e-4)
    (evaluated,) = (tmp_path / "run").glob("evaluate-*.json")
    assert json.loads(evaluated.read_text())["auc"] > 0.85
    served = run_python(
        "import json, sys\nfrom paddlebox.serving import Predictor\n"
        "rows = [{'year': y, 'user': f'u{y % 7}'} for y in (1950, 1984, 1987, 2019)]\n"
        "print(json.dumps(Predictor(sys.argv[1]).predict(rows).reshape(-1).tolist()))",
        str(tmp_path / "file"),
    )
    dumped = pq.read_table(tmp_path / "dump.parquet").to_pydict()
    by_year = dict(zip(years[3000:].tolist(), dumped["prediction"], strict=True))
    for year, prediction in zip((1950, 1984, 1987, 2019), served, strict=True):
        assert abs(by_year[year] - prediction) < 1e-6
