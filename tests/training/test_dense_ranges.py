"""Numbers are encoded by ranges that the first rows show, the same in training and serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Config
from paddlebox.config.stored import with_stored
from paddlebox.data.first_look import FirstLook
from paddlebox.errors import ConfigError
from paddlebox.models import create_model
from paddlebox.models.encoded_dense import EncodedDense, columns_of
from paddlebox.store.group import ONE_RANK
from paddlebox.training.plan import plan_passes
from paddlebox.training.resume import ResumeRequest
from paddlebox.training.settle import settled
from tests.conftest import run_python, tool
from tests.support.configs import make_config, make_slots, write_config, write_slots
from tests.support.marks import long

ROWS = 2048
SLOTS = make_slots(click="label", x={"type": "dense", "default": -1}, user={"hash": True})


def write(path: Path, xs: Any) -> Path:
    lines = [f"{k % 2},{x},u{k % 7}" for k, x in enumerate(xs)]
    path.write_text("\n".join(["click,x,user", *lines]) + "\n")
    return path


def config(path: Path, **model: Any) -> Config:
    data = {"format": "csv", "train_files": [str(path)]}
    return make_config(data=data, model={"type": "deepfm", **model})


def ranges(path: Path) -> tuple[float, ...]:
    (edges,) = FirstLook(config(path), SLOTS).numbers([str(path)], ROWS).ranges
    return edges


def settle(own: Config, run_dir: Path, source: Any = None) -> Config:
    return settled(ResumeRequest(run_dir, own, SLOTS), plan_passes(own), ONE_RANK, source)


def test_ranges_hold_about_equally_many_rows(tmp_path: Path) -> None:
    xs = np.random.default_rng(1).lognormal(size=ROWS)
    edges = np.array(ranges(write(tmp_path / "a", np.round(xs, 4))))
    assert len(edges) == 33
    assert (edges[0], edges[-1]) == pytest.approx((xs.min(), xs.max()), abs=1e-4)
    inside, _ = np.histogram(xs, edges)
    assert inside.min() > 50
    assert inside.max() < 80


def test_a_value_of_many_rows_has_an_edge_of_its_own_and_one_at_the_next_value(
    tmp_path: Path,
) -> None:
    xs = [1 + k / ROWS for k in range(ROWS // 2)] + [""] * (ROWS // 2)  # a missing value is -1
    assert ranges(write(tmp_path / "a", xs))[:2] == (-1, 1)


def test_values_beside_one_of_many_rows_share_8_ranges(tmp_path: Path) -> None:
    values = np.random.default_rng(1).permutation(320) + 1
    edges = ranges(write(tmp_path / "a", [*values, *[0] * (ROWS - 320)]))
    assert edges[:2] == (0, 1)
    inside, _ = np.histogram(values, edges[1:])
    assert len(inside) == 8
    assert inside.min() > 38
    assert inside.max() < 42


def test_few_values_are_edges_themselves_and_two_values_or_few_rows_get_none(
    tmp_path: Path,
) -> None:
    assert ranges(write(tmp_path / "a", [k % 3 * 10 for k in range(ROWS)])) == (0, 10, 20)
    assert ranges(write(tmp_path / "a", [k % 2 for k in range(ROWS)])) == ()
    assert ranges(write(tmp_path / "a", range(127))) == ()


def test_the_columns_of_a_feature_follow_each_other() -> None:
    from paddlebox import ops

    paddle = ops.paddle
    paddle.disable_static()

    class Sees(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def forward(self, *inputs: Any) -> Any:
            return inputs[4]

    encoded = EncodedDense(Sees(), [(1, 2), (3, 0.5)], [(0, 2, 10), ()])
    dense = paddle.to_tensor(np.array([[1, 3, 9], [4, 4, 8], [-5, 4, 8], [50, 4, 8]], np.float32))
    assert encoded(None, None, None, None, dense).numpy().tolist() == [
        [0, 0, -0.5, 0, 9],
        [1.5, 0.5, -0.25, 2, 8],
        [-3, -0.5, -0.5, 2, 8],
        [24.5, 0.5, 0.5, 2, 8],
    ]
    assert columns_of([(0, 2, 10), ()], 2) == (3, 1)
    assert columns_of((), 2) == (1, 1)
    assert not encoded.parameters()


def test_a_new_run_chooses_them_and_a_later_start_continues_with_them(tmp_path: Path) -> None:
    file = write(tmp_path / "a", range(ROWS))
    made = settle(config(file), tmp_path / "run")
    assert len(made.model.edges) == 1
    assert len(made.model.edges[0]) == 33
    stored = json.loads(made.canonical_json())
    write(file, range(0, 5 * ROWS, 5))
    for named in ({}, {"dense_ranges": "auto"}):
        assert with_stored(config(file, **named), stored, "it").model.edges == made.model.edges
    source = settle(config(file), tmp_path / "other", source=stored)
    assert source.model.edges == made.model.edges


@pytest.mark.parametrize(
    "named",
    [
        {"dense_ranges": "none"},
        {"dense_scale": "none"},  # such a model sees the features as they are
        {"dense_scale": [[1.0, 2.0]]},
        {"type": "hstu", "dense_ranges": "auto"},
    ],
)
def test_a_run_chooses_none_if_the_config_says_what_the_model_sees(
    tmp_path: Path, named: dict[str, Any]
) -> None:
    own = config(write(tmp_path / "a", range(ROWS)), dense_ranges="auto")
    named = {"type": "deepfm", **named}
    more = {"sequences": {"user": "user"}} if named["type"] == "hstu" else {}
    data = {**own.data.model_dump(include={"format", "train_files"}), **more}
    assert settle(make_config(data=data, model=named), tmp_path / "run").model.edges == ()


def test_wrong_edges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dense_ranges: feature 0: expected ascending .*2\.0, 2"):
        config(tmp_path, dense_ranges=[[2.0, 2.0]])
    with pytest.raises(ConfigError, match=r"reads sequences of users.*take dense_ranges out"):
        data = {"sequences": {"user": "user"}}
        make_config(data=data, model={"type": "hstu", "dense_ranges": [[1.0, 2.0]]})
    wrong = config(tmp_path, dense_ranges=[[1.0, 2.0], []]).model
    with pytest.raises(ConfigError, match=r"dense_ranges has 2 entries, but .* 1 dense features"):
        create_model(wrong, slots=1, embedx_dim=2, dense_width=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sequence"),
    [
        ("deepfm+priors", False),
        ("din", True),
        *(long(model, False) for model in ("deepfm", "lr", "dssm")),
    ],
)
def test_a_jump_is_learned_and_served_as_it_was_evaluated(
    tmp_path: Path, model: str, sequence: bool
) -> None:
    """A linear function of the number knows nothing about the label: it is 1 in the middle."""
    rng = np.random.default_rng(1)
    xs = rng.integers(0, 1000, 5000)
    clicks = rng.random(5000) < np.where(abs(xs - 500) < 250, 0.9, 0.1)
    lines = [f"{int(c)},{x},u{x % 7},a|b" for c, x in zip(clicks, xs, strict=True)]
    for name, own in (("train", lines[:4000]), ("test", lines[4000:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["click,x,user,seen", *own]) + "\n")
    seen = {"hash": True, "max_length": 3}
    write_slots(tmp_path, click="label", x="dense", user={"hash": True}, seen=seen)
    keys: dict[str, Any] = {"type": model.partition("+")[0]}
    keys |= {"history": {"seen": "user"}} if sequence else {}
    keys |= {"user": ["user", "x"], "item": ["seen"]} if model == "dssm" else {}
    keys |= {"click_prior": True} if model == "deepfm+priors" else {}
    data = {"test_files": [f"{tmp_path}/test.csv"]}
    path = write_config(tmp_path, data=data, model=keys)
    run = tmp_path / "run"
    for done in (
        tool("train", "-c", path, "--run-dir", run),
        tool("evaluate", run, "--dump", tmp_path / "dump.parquet"),
        tool("export", run, "--out", tmp_path / "file"),
    ):
        assert done.returncode == 0, done.stderr
    (evaluated,) = run.glob("evaluate-*.json")
    assert json.loads(evaluated.read_text())["auc"] > (0.6 if model == "dssm" else 0.85)
    served = run_python(
        "import csv, json, sys\nfrom paddlebox.serving import Predictor\n"
        "rows = [{**r, 'seen': r['seen'].split('|')} for r in csv.DictReader(open(sys.argv[2]))]\n"
        "print(json.dumps(Predictor(sys.argv[1]).predict(rows[:50]).reshape(-1).tolist()))",
        str(tmp_path / "file"),
        str(tmp_path / "test.csv"),
    )
    expected = pq.read_table(tmp_path / "dump.parquet").to_pydict()["prediction"][:50]
    assert np.allclose(served, expected, rtol=0, atol=1e-6)
