"""`model.loss`: runs with losses in groups and with a loss of your own, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import load_config
from paddlebox.data.packer import _numbered
from paddlebox.errors import ConfigError
from tests.support import processes
from tests.support.configs import make_config, write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "weights_small.py").read_text()
PAGES, ON_A_PAGE = 250, 8
OWN = """
import paddle

def squares(logits, labels, groups, mask):
    assert (groups is None) == (mask is None)
    every = paddle.square(paddle.nn.functional.sigmoid(logits) - labels)
    return paddle.mean(every if mask is None else every * mask)

number = 7
"""

WRONG = """
def few(logits, labels):
    return logits.mean()

def each(logits, labels, groups, mask):
    return logits * labels
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A page's clicks depend on its items, and more on an effect of the page that no slot shows."""
    random = np.random.default_rng(3)
    lines = []
    for page in range(1, PAGES + 1):
        effect = random.normal(0, 3)
        for item in random.integers(1, 30, ON_A_PAGE).tolist():
            click = random.random() < 1 / (1 + np.exp(-effect - (item - 15) / 6))
            lines.append(f"1 {int(click)} 1 {page} 1 {1000 + item}\n")
    (tmp_path / "rows.txt").write_text("".join(lines))
    (tmp_path / "own.py").write_text(OWN)
    write_slots(tmp_path, click="label", page="sparse", item="sparse")
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={
            "format": "multislot",
            "train_files": [f"{tmp_path}/rows.txt"],
            "test_files": [f"{tmp_path}/rows.txt"],
            "batch_size": 64,
            "shuffle": True,
        },
        model={"type": "lr", "slots": ["item"]},
        optimizer={"averaging": 0.0, "learning_rate": 0.02},
        trainer={"dense_threads": 1, "epochs": 2},
        metrics=[{"name": "page", "method": "wuauc", "group": "page"}],
    )
    return tmp_path


def train(folder: Path, *overrides: str, **options: Any) -> Any:
    given: dict[str, Any] = {"config": str(folder / "config.yaml"), **options}
    given["overrides"] = list(overrides)
    given["folder"] = str(folder / f"run-{len(list(folder.iterdir()))}")
    done = processes.run(["-c", SCRIPT, json.dumps(given)])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["pairwise", long("listwise"), long("jrc")])
def test_a_loss_in_groups_ranks_pages_the_same_in_all_programs(folder: Path, loss: str) -> None:
    options = [f"model.loss={loss}", "model.loss_group=page"]
    found = [train(folder, *options, f"trainer.program={p}") for p in ("pir", "dygraph")]
    for one in found:
        assert one["error"] == ""
        assert one["test"]["page"]["uauc"] > 0.7
        assert one["test"]["loss"] == pytest.approx(found[0]["test"]["loss"], abs=1e-5)
        assert one["lines"][1]["loss"] < one["lines"][0]["loss"]


def test_a_loss_of_ones_own_trains(folder: Path) -> None:
    named = f"model.loss={folder}/own.py:squares"
    allowed = "security.allow_commands=true"
    found = train(folder, named, allowed)
    assert found["error"] == ""
    assert found["test"]["loss"] == pytest.approx(found["test"]["rmse"] ** 2, rel=1e-4)
    with pytest.raises(ConfigError, match=r"model\.loss needs security\.allow_commands"):
        load_config(folder / "config.yaml", [named])
    for name, expected in (("number", "mask), found int"), ("sqares", "squares")):
        error = train(folder, f"model.loss={folder}/own.py:{name}", allowed)["error"]
        assert error.startswith("ConfigError")
        assert expected in error
    (folder / "wrong.py").write_text(WRONG)
    for name, expected in (("few", "expected a function (logits, labels"), ("each", "of shape")):
        error = train(folder, f"model.loss={folder}/wrong.py:{name}", allowed)["error"]
        assert error.startswith(f"ConfigError: model.loss '{folder}/wrong.py:{name}'")
        assert expected in error


@pytest.mark.slow
def test_a_loss_of_ones_own_learns_numbers_as_labels(folder: Path) -> None:
    random = np.random.default_rng(4)
    items = random.integers(1, 3, 3000).tolist()
    labels = [round(random.uniform(0.1, 0.3) + 0.4 * (item == 2), 4) for item in items]
    lines = (f"1 {y} 1 {item} 1 {item}\n" for y, item in zip(labels, items, strict=True))
    (folder / "rows.txt").write_text("".join(lines))
    options = ["metrics=[]", "trainer.epochs=8", "optimizer.learning_rate=0.1"]
    own = [f"model.loss={folder}/own.py:squares", "security.allow_commands=true"]
    served = [{"page": [1], "item": [item]} for item in (1, 2)]
    found = train(folder, *options, *own, served=served)
    assert found["error"] == ""
    assert found["served"] == pytest.approx([0.2, 0.6], abs=0.03)
    assert found["test"]["actual_ctr"] == pytest.approx(np.mean(labels), abs=1e-5)
    assert found["test"]["copc"] == pytest.approx(1, abs=0.03)
    assert found["test"]["rmse"] < 0.08
    refused = train(folder, *options)["error"]
    assert refused.startswith("DataError: label 0 is 0.")
    assert "set model.loss to a function of your own" in refused


def test_a_group_is_a_slot_or_page_views(folder: Path) -> None:
    jrc = "model.loss=jrc"
    assert "no sparse slot 'pages'" in train(folder, jrc, "model.loss_group=pages")["error"]
    assert "data.logkey: true" in train(folder, jrc, "model.loss_group=search_id")["error"]


def test_a_model_with_a_loss_of_its_own_is_refused(folder: Path) -> None:
    (folder / "own.py").write_text(
        OWN + "from paddlebox.models.lr import LogisticRegression\n\n"
        "class Net(LogisticRegression):\n"
        "    def loss(self, logits, labels, mask=None):\n        return paddle.mean(logits)\n"
    )
    custom = f"model={{type: custom, layer: {folder}/own.py:Net, loss: jrc, loss_group: page}}"
    error = train(folder, custom, "security.allow_commands=true")["error"]
    assert "Net computes a loss of its own" in error


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"loss": "jcr"}, "loss: expected bce, pairwise, listwise, jrc, path"),
        ({"loss": "jrc"}, "loss jrc compares the instances of a group: set loss_group"),
        ({"loss_group": "page"}, "loss_group page has no effect with loss bce"),
        (
            {"type": "mmoe", "loss": "jrc", "loss_group": "page"},
            "loss jrc: mmoe computes a loss of its own",
        ),
    ],
)
def test_losses_that_make_no_sense_are_refused(model: dict[str, str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_config(model={"type": "dnn", **model})


@pytest.mark.parametrize(
    ("join", "update", "user", "expected"),
    [
        ("page", "", "", r"join\.model\.loss_group: expected search_id, .* found 'page'"),
        ("search_id", "", "u", r"join\.model\.loss_group: expected u, .* found 'search_id'"),
        ("", "u", "u", r"update\.model\.loss_group u does not work together with data\.sequences"),
    ],
)
def test_groups_that_a_phase_takes_apart_are_refused(
    join: str, update: str, user: str, expected: str
) -> None:
    def phase(group: str) -> dict[str, Any]:
        loss = {"loss": "jrc", "loss_group": group} if group else {}
        return {"model": {"type": "dnn", **loss}}

    data = {"format": "multislot", **({"sequences": {"user": user}} if user else {"logkey": True})}
    with pytest.raises(ValueError, match=expected):
        make_config(model=None, data=data, phases={"join": phase(join), "update": phase(update)})


def test_groups_that_are_in_no_one_batch_and_batches_of_too_many_pairs_are_refused() -> None:
    model = {"type": "dnn", "loss": "jrc", "loss_group": "page"}
    with pytest.raises(
        ValueError, match=r"data\.share instance does not work together with model\.loss_group"
    ):
        make_config(model=model, data={"share": "instance"})
    with pytest.raises(ValueError, match=r"model\.loss_group: expected u, .* found 'page'"):
        make_config(model=model, data={"sequences": {"user": "u"}})
    with pytest.raises(
        ValueError,
        match=r"batch_size 8193 does not work together with model\.loss_group: .* most 8192",
    ):
        make_config(model=model, data={"batch_size": 8193})


def test_dssm_keeps_its_own_losses(folder: Path) -> None:
    towers = "model={type: dssm, user: [page], item: [item], loss: in_batch}"
    assert load_config(folder / "config.yaml", [towers]).model.objective == "bce"


def test_groups_have_numbers_and_a_feasign_of_0_is_no_group() -> None:
    numbers = _numbered(np.array([7, 0, 9, 7, 0], np.uint64)).reshape(-1).tolist()
    assert numbers[0] == numbers[3]
    assert len({*numbers}) == 4
    assert _numbered(np.zeros(0, np.uint64)).shape == (0, 1)
