"""`data.keep_values`: the texts of a slot are committed, exported, and go with their rows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from paddlebox.config import Format, load_config, load_slots
from paddlebox.errors import ConfigError
from paddlebox.serving.slot_values import SlotValues
from paddlebox.store import run_config
from paddlebox.store.files import read_dense
from paddlebox.store.kept_values import VALUES, KeptValues
from paddlebox.tools.rows.export import export_rows
from paddlebox.tools.rows.parts import PartFormat
from paddlebox.tools.upkeep.cli import store_main
from paddlebox.training.callbacks import Callback
from paddlebox.training.opening import read_slots
from tests.conftest import PATIENCE_S, tool
from tests.ranks.launched import run_launched
from tests.support.configs import write_config, write_slots
from tests.support.marks import long
from tests.support.processes import start_tool

PASSES, ROWS, USERS = 5, 400, 100


def write_run(folder: Path, form: str = "csv", **data: Any) -> Path:
    """One file a day. Users of day n are n·50 to n·50 + 99, and rows go after a day unseen."""
    write_slots(folder, click="label", user={"hash": True}, item={"hash": True})
    for n in range(PASSES):
        random = np.random.default_rng(n)
        users = random.integers(0, USERS, ROWS) + 50 * n
        frame = pd.DataFrame({"click": random.integers(0, 2, ROWS), "user": users})
        frame["user"] = [f"user ü{u}" for u in users]
        frame["item"] = [f"i{i}" for i in random.integers(0, 20, ROWS)]
        path = folder / f"{n}.{form}"
        frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
    fields = {
        "format": form,
        "train_files": [str(folder / f"{n}.{form}") for n in range(PASSES)],
        "files_per_pass": 1, "date": "20240101", "files_per_day": 1, "batch_size": 64,
        "keep_values": ["user"], **data,
    }  # fmt: skip
    life = {"delete_threshold": 0.0, "delete_after_unseen_days": 1}
    table = {"embedx_dim": 4, "embedx_threshold": 0.0, "life": life}
    model = {"type": "dnn", "hidden": [8]}
    return write_config(folder, data=fields, table=table, model=model)


def train(config: Path, run_dir: Path, callbacks: Sequence[Callback] = ()) -> None:
    from paddlebox.training.run import train as trained

    trained(config, run_dir, callbacks=callbacks)


class StopAfter(Callback):
    """Stops the run after a pass."""

    def __init__(self, number: int) -> None:
        self._number = number

    def on_pass(self, line: dict[str, Any]) -> bool:
        return bool(line["pass"] == self._number)


def stored(run_dir: Path) -> dict[str, np.ndarray]:
    """The arrays of the newest version."""
    record = run_config.record_of(run_dir)
    assert record is not None
    folder = run_dir / "store" / "dense" / f"{record.dense_version:012d}"
    return read_dense(folder, record.dense, lambda name: name.startswith(VALUES))


def exported(run_dir: Path) -> pd.DataFrame:
    to = run_dir.parent / f"out of {run_dir.name}"
    export_rows(run_dir, str(to), PartFormat.PARQUET)
    return pq.read_table(to / "rows").to_pandas()


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", long("parquet")])
def test_an_export_has_the_text_of_each_row_of_the_slot(tmp_path: Path, form: str) -> None:
    config, run_dir = write_run(tmp_path, form), tmp_path / "run"
    train(config, run_dir)
    frame = exported(run_dir)
    users, items = frame[frame.slot == "user"], frame[frame.slot == "item"]
    assert len(users) > 100
    assert users.value.notna().all()
    assert items.value.isna().all()
    own = load_config(config)
    values = SlotValues(load_slots(own.data.slots), "user", Format(form), own.data.key_space)
    assert values.feasigns(users.value.tolist()).tolist() == users.feasign.tolist()
    # Users of the first two days lost their rows, and with them their texts.
    kept = KeptValues.of(stored(run_dir))
    assert 0 not in {int(text.removeprefix("user ü")) for text in kept.table["value"].to_pylist()}
    assert lines_of(run_dir)[-1]["values"] == {
        "count": len(kept.keys), "bytes": kept.nbytes, "full": False,
    }  # fmt: skip
    assert len(kept.keys) < 50 * PASSES + 50 == 300


@pytest.mark.slow
def test_a_killed_run_has_the_values_of_an_unbroken_one(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    train(config, tmp_path / "unbroken")
    process = start_tool("train", "-c", config, "--run-dir", tmp_path / "run")
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "run/metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    train(config, tmp_path / "run", [StopAfter(PASSES - 1)])  # which is followed by a drop
    train(config, tmp_path / "run")
    expected, found = stored(tmp_path / "unbroken"), stored(tmp_path / "run")
    assert expected.keys() == found.keys() > {VALUES + "keys"}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_ranks_keep_what_one_rank_keeps_and_a_single_rank_takes_it_over(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    train(config, tmp_path / "one")
    done = run_launched(2, "train", tmp_path / "run", config, "data.share=instance")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = exported(tmp_path / "one")[["feasign", "value"]].sort_values("feasign")
    found = exported(tmp_path / "run")[["feasign", "value"]].sort_values("feasign")
    pd.testing.assert_frame_equal(found, expected, check_like=True)
    fields = yaml.safe_load(config.read_text())
    fields["data"]["train_files"].append(fields["data"]["train_files"][-1])
    more = tmp_path / "more.yaml"
    more.write_text(yaml.safe_dump(fields))
    train(more, tmp_path / "run")
    after = KeptValues.of(stored(tmp_path / "run"))
    assert set(expected.value.dropna()) <= set(after.table["value"].to_pylist())


@pytest.mark.slow
def test_a_full_budget_leaves_out_later_values_and_says_so(tmp_path: Path) -> None:
    config, run_dir = write_run(tmp_path, keep_values_bytes=2000), tmp_path / "run"
    done = tool("train", "-c", config, "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    assert "data.keep_values: the values take data.keep_values_bytes (2000)" in done.stderr
    lines = [line["values"] for line in lines_of(run_dir)]
    assert all(line["full"] and 1900 < line["bytes"] <= 2000 for line in lines)
    frame = exported(run_dir)
    known = frame[frame.slot == "user"].value
    assert 0 < known.notna().sum() < len(known)  # those of later days, in place of deleted ones


@pytest.mark.slow
def test_erased_rows_lose_their_texts(tmp_path: Path) -> None:
    config, run_dir = write_run(tmp_path), tmp_path / "run"
    train(config, run_dir)
    erased = "user ü260"
    assert erased in KeptValues.of(stored(run_dir)).table["value"].to_pylist()
    arguments = ["erase", str(run_dir), erased, "--slot", "user", "--everywhere"]
    assert store_main(arguments) == 0
    left = KeptValues.of(stored(run_dir)).table["value"].to_pylist()
    assert erased not in left
    assert "user ü261" in left
    holders = [p for p in run_dir.rglob("*") if p.is_file() and erased.encode() in p.read_bytes()]
    assert not holders
    assert store_main(["erase", str(run_dir), "--slot", "user", "--yes"]) == 0
    assert not len(KeptValues.of(stored(run_dir)).keys)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"keep_values": ["usr"]}, r"data.keep_values: no sparse slot 'usr'.*did you mean 'user'"),
        ({"keep_values": ["plain"]}, r"slot .plain. has no texts: expected slots with `hash"),
        ({"keep_values": ["both"]}, r"slot 'both' has no texts"),
        ({"format": "multislot"}, r"csv, parquet, arrow or orc .*, found format multislot"),
    ],
)
def test_slots_without_texts_are_refused(
    tmp_path: Path, data: dict[str, Any], message: str
) -> None:
    config = load_config(write_run(tmp_path, **data))
    write_slots(
        tmp_path, click="label", user={"hash": True}, plain="sparse",
        both={"cross": ["user", "plain"]},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        read_slots(config)
