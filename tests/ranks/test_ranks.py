"""Several ranks train what one would: processes of the launcher, over loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.conftest import PATIENCE_S
from tests.ranks.worker import SLOTS, write_rows
from tests.support import processes
from tests.support.configs import write_config, write_slots
from tests.support.marks import long
from tests.support.processes import free_port

_ROOT = Path(__file__).parents[2]
_WORKER = str(_ROOT / "tests/ranks/worker.py")
_BATCH = 64


def _configured(
    folder: Path,
    ranks: int,
    *,
    program: str = "pir",
    min_count: int = 1,
    batch: int = 0,
    dim: int = 4,
    options: str = "{}",
    per_node: int = 0,
    slots: dict[str, Any] = SLOTS,
    table: dict[str, Any] | None = None,
    failing_rank: int | None = None,
    during_sum: bool = True,
    own_pulls: bool = False,
    **sections: Any,
) -> dict[str, Any]:
    """What worker.py is told of one training. options: of the section ranks, as YAML; per_node:
    ranks of a host, 0: all; table: keys of it."""
    folder.mkdir(exist_ok=True, parents=True)
    write_slots(folder, **slots)
    usual = {"embedx_dim": dim, "embedx_threshold": 3, "admission": {"min_count": min_count}}
    config = write_config(
        folder,
        data={
            "format": "multislot", "batch_size": batch or _BATCH // ranks, "key_space": "shared",
        },
        model={"hidden": [16, 8], "use_cvm": True},
        optimizer={"averaging": 0.0},
        trainer={"program": program},
        mem={"budget_bytes": "32MiB"},
        table={**usual, **(table or {})},
        ranks=yaml.safe_load(options),
        **sections,
    )  # fmt: skip
    told: dict[str, Any] = {"folder": str(folder), "config": str(config)}
    told |= {"failing_rank": failing_rank, "during_sum": during_sum, "own_pulls": own_pulls}
    told |= {"per_node": per_node or ranks}
    return told


def _fork(settings: list[Path]) -> tuple[list[int], str]:
    """As `_launch` with one launcher, whose part is done here: it takes longer to import Paddle
    once more for it and each rank than to train. settings: of each rank."""
    ranks = len(settings)
    endpoints = [f"127.0.0.1:{free_port()}" for _ in range(ranks + 1)]
    master = endpoints.pop()
    jobs = []
    for rank in range(ranks):
        numbers = {"PADDLE_TRAINER_ID": rank, "PADDLE_LOCAL_RANK": rank, "PADDLE_GLOBAL_RANK": rank}
        sizes = {"PADDLE_TRAINERS_NUM": ranks, "PADDLE_LOCAL_SIZE": ranks, "PADDLE_NNODES": 1}
        env = {name: str(number) for name, number in {**numbers, **sizes}.items()}
        env |= {"PADDLE_MASTER": master, "PADDLE_CURRENT_ENDPOINT": endpoints[rank]}
        env |= {"PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints)}
        jobs.append(processes.start([_WORKER, str(settings[rank])], env))
    said = ["".join(job.communicate(timeout=PATIENCE_S))[-4000:] for job in jobs]
    return [job.wait() for job in jobs], "\n".join(said)


def _launch(folder: Path, ranks: int, launchers: int, settings: Path) -> tuple[list[int], str]:
    """Runs worker.py. Returns the launchers' exit codes, and what they and the ranks said."""
    worker = [_WORKER, str(settings)]
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks // launchers)]
    if launchers > 1:
        launch += ["--master", f"127.0.0.1:{free_port()}", "--nnodes", str(launchers)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    jobs = []
    for number in range(launchers):
        logged = [*launch, "--log_dir", str(folder / f"log-{number}")]
        command = [sys.executable, *(logged if ranks > 1 else []), *worker]
        jobs.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [job.communicate(timeout=300)[0][-2000:] for job in jobs]
    logs = [path.read_text()[-2000:] for path in sorted(folder.glob("log-*/workerlog.*"))]
    return [job.returncode for job in jobs], "\n".join([*logs, *said])


def _train_each(
    folder: Path,
    ranks: int,
    passes: list[list[str]],
    trainings: dict[str, dict[str, Any]],
    launchers: int = 1,
) -> dict[str, dict[str, Any]]:
    """What the first rank wrote of each training, and the rows of all: {feasign: row}; "tables" has
    those of each table. The trainings, each with its settings, are of the same processes: to start
    ranks takes longer than to train so little."""
    told = [
        {"passes": passes, **_configured(folder / name, ranks, **settings)}
        for name, settings in trainings.items()
    ]
    settings = Path(told[0]["folder"]) / "settings.json"
    settings.write_text(json.dumps(told))
    if launchers > 1:
        codes, said = _launch(settings.parent, ranks, launchers, settings)
    else:
        codes, said = _fork([settings] * ranks)
    assert set(codes) == {0}, said
    return {name: _written(folder / name, ranks) for name in trainings}


def _written(folder: Path, ranks: int) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"result-{ranks}-0.json").read_text())
    tables: dict[str, Any] = {}
    for rank in range(ranks):
        with np.load(folder / f"rows-{ranks}-{rank}.npz") as arrays:
            for table in {name.split("/")[0] for name in arrays.files}:
                feasigns, rows = (arrays[f"{table}/{what}"] for what in ("feasigns", "rows"))
                of_rank = dict(zip(feasigns.tolist(), rows, strict=True))
                tables.setdefault(table, {})[rank] = of_rank
    return {**result, "rows": tables["default"], "tables": tables}


def _train(
    folder: Path, ranks: int, passes: list[list[str]], *, launchers: int = 1, **settings: Any
) -> dict[str, Any]:
    """One training, of processes of its own."""
    trainings = {folder.name: settings}
    return _train_each(folder.parent, ranks, passes, trainings, launchers)[folder.name]


def _all_rows(result: dict[str, Any]) -> dict[int, np.ndarray]:
    merged: dict[int, np.ndarray] = {}
    for rows in result["rows"].values():
        assert not merged.keys() & rows.keys(), "a feasign has a row on two ranks"
        merged |= rows
    return merged


def _passes(folder: Path, files: int) -> list[list[str]]:
    folder.mkdir(exist_ok=True)
    passes = []
    for seed in (1, 2):
        inside = folder / f"data-{seed}"
        inside.mkdir(exist_ok=True)
        passes.append(write_rows(inside, 640, files, _BATCH, seed))
    return passes


def _assert_same_model(one: dict[str, Any], several: dict[str, Any]) -> None:
    expected, found = _all_rows(one), _all_rows(several)
    assert expected.keys() == found.keys()
    feasigns = sorted(expected)
    np.testing.assert_allclose(
        np.stack([found[f] for f in feasigns]),
        np.stack([expected[f] for f in feasigns]),
        rtol=1e-5,
        atol=1e-6,
    )
    for name, values in one["dense"].items():
        np.testing.assert_allclose(several["dense"][name], values, rtol=1e-4, atol=1e-5)
    for before, after in zip(one["passes"], several["passes"], strict=True):
        assert after["samples"] == before["samples"]
        assert after["auc"] == pytest.approx(before["auc"], abs=1e-3)
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)


@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_two_ranks_train_the_rows_and_the_network_that_one_trains(
    tmp_path: Path, program: str
) -> None:
    one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1), program=program)
    two = _train(tmp_path / "two", 2, _passes(tmp_path / "b", 2), program=program)
    _assert_same_model(one, two)
    assert all(len(rows) > 100 for rows in two["rows"].values()), "a rank owns next to nothing"


@pytest.mark.long
def test_ranks_of_two_launchers_exchange_by_the_network_and_end_with_the_same_bits(
    tmp_path: Path,
) -> None:
    passes = _passes(tmp_path / "data", 2)
    near = _train(tmp_path / "near", 2, passes)
    far = _train(tmp_path / "far", 2, passes, launchers=2)
    assert (near["on_one_host"], far["on_one_host"]) == (True, False)
    assert far["sent"]["sent_bytes_early"] > 0
    assert far["sent"]["sent_bytes_step"] < near["sent"]["sent_bytes_step"]
    assert far["digest"] == near["digest"]
    assert far["dense"] == near["dense"]


@pytest.mark.long
def test_gradients_that_are_sent_during_the_sum_give_the_bits_of_those_sent_after_it(
    tmp_path: Path,
) -> None:
    settings = {
        f"{program}-{during_sum}": {"program": program, "during_sum": during_sum}
        for program in ("pir", "dygraph")
        for during_sum in (True, False)
    }
    found = _train_each(tmp_path, 2, _passes(tmp_path, 2), settings, launchers=2)
    for program in ("pir", "dygraph"):
        during, after = found[f"{program}-True"], found[f"{program}-False"]
        # In every step that sends gradients.
        gives = sum(what == "give" for what, _ in during["order"])
        assert (during["begun"], after["begun"]) == (gives, 0)
        assert gives > 5
        assert during["digest"] == after["digest"]
        assert during["dense"] == after["dense"]


@pytest.mark.slow
def test_a_failed_step_of_a_rank_is_reported_to_the_others(tmp_path: Path) -> None:
    passes = _passes(tmp_path / "data", 2)
    settings = tmp_path / "settings.json"
    told = _configured(tmp_path / "run", 2, failing_rank=1)
    settings.write_text(json.dumps([{"passes": passes, **told}]))
    codes, _ = _launch(tmp_path, 2, 1, settings)
    assert codes != [0]
    expected = "rank 1 has left the job: ValueError: the step of this rank fails"
    assert expected in (tmp_path / "log-0/workerlog.0").read_text()


@pytest.mark.slow
def test_ranks_with_different_configs_are_refused_by_all(tmp_path: Path) -> None:
    settings = []
    for rank, dim in enumerate((4, 8)):
        folder = tmp_path / str(rank)
        told = _configured(folder, 2, dim=dim)
        config = Path(told["config"])
        config.write_text(config.read_text().replace(f"{folder}/train.csv", "train.csv"))
        settings.append(folder / "settings.json")
        settings[-1].write_text(json.dumps([{"passes": [], **told}]))
    codes, said = _fork(settings)
    assert 0 not in codes
    expected = r"ConfigError: rank 1 on host \S+: table\.embedx_dim is 8, expected 4 as on rank 0"
    assert len(re.findall(expected, said)) == 2, said


@pytest.mark.slow
def test_two_hosts_of_two_ranks_train_what_one_rank_trains(tmp_path: Path) -> None:
    one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1))
    four = _train(tmp_path / "four", 4, _passes(tmp_path / "b", 4), launchers=2)
    _assert_same_model(one, four)


@pytest.mark.long
def test_four_ranks_with_admission_train_what_one_trains(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"min_count": 2}
    one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1), **settings)
    trainings = {"four": settings, "again": settings}
    four, again = _train_each(tmp_path, 4, _passes(tmp_path / "b", 4), trainings).values()
    _assert_same_model(one, four)
    assert again["digest"] == four["digest"]
    assert again["dense"] == four["dense"]


@pytest.mark.long
def test_ranks_evict_the_rows_that_one_rank_evicts(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"table": {"max_rows": 120, "admission": {"probability": 0.8}}}
    one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1), **settings)
    two = _train(tmp_path / "two", 2, _passes(tmp_path / "b", 2), **settings)
    assert 100 < len(one["rows"][0]) <= 120
    _assert_same_model(one, two)


@pytest.mark.slow
def test_a_rank_without_files_serves_the_others_until_the_pass_ends(tmp_path: Path) -> None:
    passes = [[files[0]] for files in _passes(tmp_path / "data", 2)]
    two = _train(tmp_path / "two", 2, passes)
    one = _train(tmp_path / "one", 1, passes, batch=_BATCH // 2)
    _assert_same_model(one, two)
