"""A file serves what was evaluated, from the command line; and which rows a file keeps."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.serving import Predictor
from paddlebox.tools.upkeep.life import life
from tests.conftest import tool
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

pytestmark = pytest.mark.slow  # each test starts processes that import Paddle
PASSES = 4
THRESHOLD = ("--threshold", "1.5")


def write_rows(path: Path, seed: int, count: int = 400) -> list[dict[str, Any]]:
    """Users are many and rare, so that most of their rows have a score below 1.5."""
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

    def __init__(self, folder: Path, *overrides: str, table_of_tags: str = "") -> None:
        self.folder, self.run_dir = folder, folder / "run"
        hashed, price = {"hash": True}, {"type": "dense", "default": 0}
        tags = hashed | ({"table": table_of_tags} if table_of_tags else {})
        write_slots(folder, click="label", user=hashed, tags=tags, price=price)
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

    def rows(self, **of_base: float) -> int:
        """Live rows of the newest version; with settings of `table.life`, those of such a base."""
        store = self.run_dir / "store"
        found = [
            life(folder, settings=of_base) for folder in (store, *(store / "tables").glob("*"))
        ]
        return sum(one["kept_by"]["base"] if of_base else one["rows"] for one in found)

    def evaluated(self, *arguments: str) -> np.ndarray:
        dump = self.folder / "dump.parquet"
        self.done = ran("evaluate", self.run_dir, "--dump", dump, *arguments)
        return np.asarray(pq.read_table(dump)["prediction"])

    def served(self, path: Path) -> np.ndarray:
        with Predictor(path) as predictor:
            return np.asarray(predictor.predict(self.instances))


@pytest.fixture(scope="module")
def undated(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("undated"))


DATES = ("data.date=20240101", "data.files_per_day=1")


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    # Few rows expire; many are unseen for longer than a base would keep them.
    life = ("table.life.delete_threshold=0.05", "table.life.delta_keep_days=1")
    return Trained(tmp_path_factory.mktemp("dated"), *DATES, *life)


@pytest.fixture(scope="module")
def two_tables(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    options = ("model.type=dnn", "extra_tables.wide.embedx_dim=5")
    folder = tmp_path_factory.mktemp("tables")
    return Trained(folder, *DATES, *options, table_of_tags="wide")


@pytest.fixture(scope="module")
def with_priors(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("priors"), "model.click_prior=[user]")


@pytest.mark.parametrize("kind", [long("undated"), "dated", "with_priors", long("two_tables")])
def test_an_export_without_flags_serves_what_was_evaluated_also_after_three_applies(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    trained: Trained = request.getfixturevalue(kind)
    expected = trained.evaluated()
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
    assert f"kept all {trained.rows():,} rows" in done.stderr


def test_a_threshold_leaves_the_same_rows_out_of_an_export_and_of_an_evaluation(
    dated: Trained, tmp_path: Path
) -> None:
    plain, live = dated.evaluated(), dated.rows()
    filters, left_out = [], []
    for threshold, least in (THRESHOLD, 1e-3), (("--threshold", "0.001"), 1e-6):
        path = tmp_path / f"{threshold[1]}.export"
        done = ran("export", dated.run_dir, "--out", path, *threshold)
        made = json.loads(done.stdout)
        expected = dated.evaluated(*threshold)
        assert np.abs(dated.served(path) - expected).max() < 1e-6
        assert np.abs(expected - plain).max() > least
        assert made["rows"] == dated.rows(base_threshold=float(threshold[1]))
        left_out.append(live - made["rows"])
        bounds = f"(threshold {threshold[1]}, unseen for at most 1 days)"
        assert f"left out {left_out[-1]:,} of {live:,} rows {bounds}" in done.stderr
        filters.append(made["filters"])
        assert json.loads(dated.done.stdout)["filters"] == made["filters"]
    assert filters[0] == [{"min_score": 1.5, "max_unseen_days": 1}]
    assert live > left_out[0] > left_out[1] > 0  # those that were not seen on the last day
    written = dated.run_dir / f"evaluate-{dated.versions[-1]}-threshold.json"
    assert json.loads(written.read_text()) == json.loads(dated.done.stdout)


def test_an_evaluation_and_an_export_say_which_version_they_used(
    dated: Trained, undated: Trained, tmp_path: Path
) -> None:
    for trained, date in (dated, " (20240104)"), (undated, ""):
        of_run = f"version {trained.versions[-1]}, pass 4{date}"
        trained.evaluated()
        evaluated = json.loads(trained.done.stdout)
        assert f"{trained.run_dir}: evaluating {of_run}; all rows" in trained.done.stderr
        path = tmp_path / f"{trained.folder.name}.export"
        done = ran("export", trained.run_dir, "--out", path)
        assert f"{path}: {of_run} of {trained.run_dir}; kept all" in done.stderr
        used = {name: json.loads(done.stdout)[name] for name in ("version", "pass_number", "day")}
        assert used == {name: evaluated[name] for name in used}
        assert (used["day"] > 0) == bool(date)


def test_apply_keeps_the_files_filter_and_refuses_a_fifth_less_rows(
    dated: Trained, tmp_path: Path
) -> None:
    path = tmp_path / "m.export"
    first, second, third, fourth = dated.versions
    made = printed(dated.run_dir, "--out", path, "--version", first)
    grown = printed(path, "--apply", dated.run_dir, "--version", second)
    assert grown["rows"] > made["rows"]
    assert grown["filters"] == made["filters"] == [{"min_score": None, "max_unseen_days": None}]
    before = dated.served(path)
    given = [path, "--apply", dated.run_dir, "--version", third, *THRESHOLD]
    refused = ran("export", *given, code=5)
    assert f"rows less than the {grown['rows']:,} that are shown" in refused.stderr
    assert "--force" in refused.stderr
    assert np.array_equal(dated.served(path), before)
    forced = printed(*given, "--force")
    assert forced["rows"] < 0.8 * grown["rows"]
    shown = printed(path, "--show")["generations"][-1]
    assert shown["filters"] == [{"min_score": 1.5, "max_unseen_days": 1}]
    kept = printed(path, "--apply", dated.run_dir, "--version", fourth)
    assert kept["filters"] == shown["filters"]
    assert np.abs(dated.served(path) - dated.evaluated(*THRESHOLD)).max() < 1e-6
