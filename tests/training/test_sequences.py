"""Runs that train sequences of users: loss, shows and metrics count each instance once, histories
are part of a commit, and what is refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError
from tests.support import processes
from tests.support.configs import make_config, write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "sequences_small.py").read_text()
PASSES, ROWS, USERS = 4, 600, 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(4)
    for number in range(PASSES):
        users = random.integers(1, USERS, ROWS)
        items = random.integers(100, 160, ROWS)
        times = 1000 * number + random.integers(0, 1000, ROWS)
        clicks = (users + items) % 3 == 0
        lines = [
            f"1 {t} 1 {int(c)} 1 {u} 1 {i}\n"
            for t, c, u, i in zip(times, clicks, users, items, strict=True)
        ]
        (tmp_path / f"{number}.txt").write_text("".join(lines))
    write_slots(tmp_path, click="label", user="sparse", item="sparse")
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={
            "format": "multislot",
            "train_files": [f"{tmp_path}/[0-9].txt"],
            "test_files": [f"{tmp_path}/0.txt"],
            "files_per_pass": 1,
            "batch_size": 128,
            "sequences": {"user": "user"},
        },
        model={"type": "dnn", "hidden": [8]},
        optimizer={"averaging": 0.0},
        trainer={"dense_threads": 1},
    )
    return tmp_path


def train(
    folder: Path, name: str, *overrides: str, fail_in: int = 0, kill_at: int | None = None
) -> Any:
    options: dict[str, Any] = {"config": str(folder / "config.yaml"), "fail_in": fail_in}
    options |= {"folder": str(folder / name), "overrides": list(overrides), "kill_at": kill_at}
    done = processes.run(["-c", SCRIPT, json.dumps(options)])
    if kill_at is not None:
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


MASK = ["data.sequences.split=5", "data.sequences.max_length=8"]
DIRECT = ["data.sequences.split=direct", "data.sequences.max_length=5"]


@pytest.mark.slow
def test_rows_get_the_same_from_each_instance_in_every_split(folder: Path) -> None:
    """A model of one weight per feature does not see the context. So all splits train the same, if
    a pass is one batch, except for the bias: its gradient is smaller with context, and Adam adds
    its epsilon to it."""
    plain = ["model={type: lr}", "data.batch_size=4096", "trainer.epochs=1"]
    whole = train(folder, "none", *plain)
    assert [line["samples"] for line in whole["lines"]] == [ROWS] * PASSES
    for name, cut in (("mask", MASK), ("direct", DIRECT)):
        found = train(folder, name, *plain, *cut)
        assert found["error"] == ""
        assert found["rows"].keys() == whole["rows"].keys()
        for feasign, row in found["rows"].items():
            assert row == pytest.approx(whole["rows"][feasign], abs=1e-4), feasign
        for line, expected in zip(found["lines"], whole["lines"], strict=True):
            assert line["samples"] == ROWS
            assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)
            assert line["metrics"]["size"] == ROWS
            assert line["metrics"]["auc"] == pytest.approx(expected["metrics"]["auc"], abs=1e-3)
            assert (line["sequences"]["context"] > 0) == (name == "mask")
    shows = sum(row[1] for row in whole["rows"].values())
    assert shows == 2 * ROWS * PASSES  # two slots


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_a_resumed_run_has_the_same_histories_to_the_bit(folder: Path, program: str) -> None:
    options = [f"trainer.program={program}", *MASK, "data.sequences.history={length: 4}"]
    options += ["data.sequences.history.budget_bytes=5000", "data.shuffle=true"]
    options += ["trainer.evaluate_passes=both"]
    unbroken = train(folder, "unbroken", *options)
    assert unbroken["error"] == ""
    carried = [line["sequences"]["carried"] for line in unbroken["lines"]]
    assert carried[0] == 0
    assert min(carried[1:]) > 0
    assert train(folder, "resumed", *options, fail_in=3)["error"].startswith("BrokenOff")
    resumed = train(folder, "resumed", *options)
    for name in ("digests", "histories", "rows"):
        assert resumed[name] == unbroken[name]
    for one, other in zip(resumed["lines"], unbroken["lines"], strict=True):
        for name in ("pass", "loss", "samples", "metrics", "sequences", "test", "before"):
            assert one.get(name) == other.get(name), name
    alone = train(folder, "alone", *options, "data.sequences.history.length=0")
    assert alone["histories"] != unbroken["histories"]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "kill_at"), [("pass", 3), long("2", 4)])
def test_a_run_that_is_killed_in_a_commit_ends_with_the_same_histories(
    folder: Path, every: str, kill_at: int
) -> None:
    options = [f"checkpoint.every={every}", *MASK, "data.sequences.history={length: 4}"]
    unbroken = train(folder, "unbroken", *options)
    assert unbroken["error"] == ""
    train(folder, "resumed", *options, kill_at=kill_at)
    resumed = train(folder, "resumed", *options)
    for name in ("digests", "histories", "rows"):
        assert resumed[name] == unbroken[name]


def test_histories_belong_to_a_user(folder: Path) -> None:
    options = [*DIRECT, "data.sequences.history.length=2"]
    assert train(folder, "run", *options)["error"] == ""
    error = train(folder, "run", *options, "data.sequences.user=item")["error"]
    assert error.startswith("ConfigError")
    assert "data.sequences.user" in error
    assert train(folder, "run", *options, "data.sequences.max_length=6")["error"] == ""


@pytest.mark.slow
def test_join_trains_sequences_and_update_instances(folder: Path) -> None:
    phases = {
        "join": {"model": {"type": "dnn", "hidden": [8]}},
        "update": {"model": {"type": "dnn", "hidden": [8]}},
    }
    text = (folder / "config.yaml").read_text()
    lines = text.split("\n")
    begin = lines.index("model:")
    end = next(at for at in range(begin + 1, len(lines)) if not lines[at].startswith(" "))
    del lines[begin:end]
    begin = lines.index("optimizer:")
    end = next(at for at in range(begin + 1, len(lines)) if not lines[at].startswith(" "))
    del lines[begin:end]
    (folder / "config.yaml").write_text("\n".join([*lines, f"phases: {json.dumps(phases)}", ""]))
    found = train(folder, "phases", *MASK, "data.sequences.history={length: 3}")
    assert found["error"] == ""
    for number, line in enumerate(found["lines"]):
        assert line["phases"]["join"]["samples"] == line["phases"]["update"]["samples"] == ROWS
        assert (line["sequences"]["carried"] > 0) == (number > 0)
    shows = sum(row[1] for row in found["rows"].values())
    assert shows == 2 * ROWS * PASSES


def test_a_model_with_a_loss_of_its_own_needs_a_mask(folder: Path) -> None:
    (folder / "own.py").write_text(
        "from paddlebox.models.lr import LogisticRegression\n\n"
        "class Net(LogisticRegression):\n"
        "    def loss(self, logits, labels):\n        return logits.mean()\n"
    )
    own = [f"model={{type: custom, layer: {folder}/own.py:Net}}", "security.allow_commands=true"]
    assert (
        "ConfigError: data.sequences, or a slot of type weight or late: "
        in train(folder, "own", *own)["error"]
    )


@pytest.mark.parametrize(
    ("sequences", "more", "expected"),
    [
        ({"split": "mask"}, {}, "split is given, but user"),
        ({"user": "u", "split": "mask"}, {}, "split needs max_length"),
        ({"user": "u", "split": 3}, {}, "split needs max_length"),
        (
            {"user": "u", "split": 4, "max_length": 4},
            {},
            "split: expected an overlap of less than max_length 4, found 4",
        ),
        ({"user": "u", "history": {"length": 1}, "max_length": 4}, {}, "history with split none"),
        (
            {"user": "u"},
            {"drop_last": True},
            "together with data.drop_last",
        ),
        ({"user": "u"}, {"share": "files"}, "share: expected auto or `slot u`, found 'files'"),
        ({"user": "u"}, {"share": "slot v"}, "share: expected auto or `slot u`, found 'slot v'"),
        ({"user": "u", "lenght": 1}, {}, "did you mean|lenght"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    sequences: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        make_config(data={"sequences": sequences, **more})


def test_histories_do_not_keep_log_keys(folder: Path) -> None:
    found = train(folder, "keys", "data.logkey=true", "data.sequences.history.length=1")
    assert "data.sequences.history keeps slots and times, but not logkey" in found["error"]


def test_histories_are_for_data_that_is_trained_once() -> None:
    kept = {"user": "u", "history": {"length": 1}}
    with pytest.raises(
        ValueError, match=r"data\.sequences\.history does not work together with trainer\.epochs 2"
    ):
        make_config(data={"sequences": kept}, trainer={"epochs": 2})


def test_the_default_overlap_is_half_of_the_length() -> None:
    config = make_config(data={"sequences": {"user": "u", "split": "mask", "max_length": 5}})
    assert config.data.sequences.context == 3  # PaddleBox's train size is 5 // 2


def test_a_model_that_reads_page_views_is_refused() -> None:
    views = {"type": "rank_attention"}
    with pytest.raises((ConfigError, ValueError), match=r"with data\.sequences: join trains"):
        make_config(
            data={"sequences": {"user": "u"}},
            model=None,
            phases={"join": {"model": views}, "update": {"model": {"type": "dnn"}}},
        )
