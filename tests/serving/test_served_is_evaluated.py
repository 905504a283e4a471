"""What a file serves is what was evaluated, from the command line; and which rows a file keeps."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.serving import Predictor
from tests.conftest import tool
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

pytestmark = pytest.mark.slow  # each test starts processes that import Paddle
PASSES = 4


def write_rows(path: Path, seed: int, count: int = 400) -> list[dict[str, Any]]:
    """Users are many and rare, so that most of their rows are below the default threshold."""
    rng = random.Random(seed)
    lines, instances = ["click,user,tags,price"], []
    for _ in range(count):
        user, price = f"u{int(rng.paretovariate(0.7))}", rng.randrange(9)
        tags = [f"t{rng.randrange(30)}" for _ in range(rng.randrange(3))]
        lines.append(f"{rng.random() < 0.3:d},{user},{'|'.join(tags)},{price}")
        instances.append({"user": user, "tags": tags, "price": price})
    path.write_text("\n".join(lines) + "\n")
    return instances


def ran(name: str, *arguments: Any, code: int = 0) -> Any:
    done = tool(name, *arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def printed(*arguments: Any) -> dict[str, Any]:
    return dict(json.loads(ran("export", *arguments).stdout))


class Trained:
    """A run of four passes, without dates or a day each."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        hashed, price = {"hash": True}, {"type": "dense", "default": 0}
        write_slots(folder, click="label", user=hashed, tags=hashed, price=price)
        for number in range(PASSES):
            write_rows(folder / f"train-{number}.csv", number)
        self.instances = write_rows(folder / "test.csv", 99)
        train, test = [f"{folder}/train-*.csv"], [f"{folder}/test.csv"]
        config = write_config(
            folder,
            data={"train_files": train, "test_files": test, "files_per_pass": 1},
            model={"type": "deepfm", "hidden": [8]},
            table={"embedx_dim": 4, "embedx_threshold": 1},
            optimizer={"averaging": 0.9},
            checkpoint={"keep_versions": 20},
        )
        given = ["-c", config, "--run-dir", self.run_dir]
        ran("train", *given, "-o", "data.batch_size=32", *overrides)
        told = json.loads(ran("store", "stat", self.run_dir, "--json").stdout)
        of_pass = {one["pass_number"]: one["version"] for one in told["versions"]}
        self.versions = [of_pass[number] for number in range(1, PASSES + 1)]

    def evaluated(self, *arguments: str) -> np.ndarray:
        dump = self.folder / "dump.parquet"
        ran("evaluate", self.run_dir, "--dump", dump, *arguments)
        return np.asarray(pq.read_table(dump)["prediction"])

    def served(self, path: Path) -> np.ndarray:
        with Predictor(path) as predictor:
            return np.asarray(predictor.predict(self.instances))


@pytest.fixture(scope="module")
def undated(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("undated"))


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    # Few rows expire, so that it is the export that leaves many out.
    life = "table.life.delete_threshold=0.05"
    return Trained(
        tmp_path_factory.mktemp("dated"), "data.date=20240101", "data.files_per_day=1", life
    )


@pytest.fixture(scope="module")
def with_priors(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("priors"), "model.click_prior=true")


@pytest.mark.parametrize("kind", [long("undated"), "dated", "with_priors"])
def test_an_export_without_flags_serves_what_was_evaluated_also_after_three_applies(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    trained: Trained = request.getfixturevalue(kind)
    expected = trained.evaluated(*["--as-served"] * (kind == "dated"))
    assert len({*expected.round(5)}) > 100
    path = tmp_path / "m.export"
    first, *others = trained.versions
    printed(trained.run_dir, "--out", path, "--version", first)
    for version in others:
        last = printed(path, "--apply", trained.run_dir, "--version", version)
    assert np.abs(trained.served(path) - expected).max() < 1e-6
    done = ran("export", trained.run_dir, "--out", tmp_path / "whole.export")
    whole = json.loads(done.stdout)
    assert np.abs(trained.served(tmp_path / "whole.export") - expected).max() < 1e-6
    assert whole["rows"] == last["rows"]  # live ones, whatever layers there are
    assert len(last["layers"]) == 4
    # That the filter matters is seen in the dated run alone.
    plain = trained.evaluated()
    if kind != "dated":
        assert "kept all" in done.stderr
        assert np.array_equal(plain, expected)
        return
    assert "left out" in done.stderr
    assert "threshold 1.5, unseen for at most 16 days" in done.stderr
    assert np.abs(plain - expected).max() > 1e-3
    printed(trained.run_dir, "--out", tmp_path / "all.export", "--threshold", "0")
    assert np.abs(trained.served(tmp_path / "all.export") - plain).max() < 1e-6


def test_apply_keeps_the_files_filter_and_refuses_to_delete_a_fifth_of_the_rows(
    dated: Trained, tmp_path: Path
) -> None:
    path = tmp_path / "m.export"
    first, second, third, _ = dated.versions
    made = printed(dated.run_dir, "--out", path, "--version", first, "--threshold", "0")
    grown = printed(path, "--apply", dated.run_dir, "--version", second)
    assert grown["rows"] > 0.9 * made["rows"]
    assert grown["filters"] == made["filters"] == [{"min_score": None, "max_unseen_days": None}]
    before = dated.served(path)
    given = [path, "--apply", dated.run_dir, "--version", third, "--threshold", "1.5"]
    refused = ran("export", *given, code=5)
    assert f"of the {grown['rows']:,} live rows" in refused.stderr
    assert "--force" in refused.stderr
    assert np.array_equal(dated.served(path), before)
    forced = printed(*given, "--force")
    assert forced["rows"] < 0.8 * grown["rows"]
    shown = printed(path, "--show")["generations"][-1]
    assert shown["filters"] == [{"min_score": 1.5, "max_unseen_days": 16}]
