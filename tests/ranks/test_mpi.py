"""Ranks that mpiexec starts: what they are told, and that they end with the bits of other ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddlebox import mpi
from paddlebox.errors import ConfigError
from tests.conftest import PATIENCE_S, ROOT
from tests.ranks.test_ranks import _configured, _passes, _train, _written


class _World:
    """COMM_WORLD of a job of two ranks on one host, as its second rank sees it."""

    def __init__(self, size: int = 2, libraries: tuple[str, ...] = ("MPI 5", "MPI 5")) -> None:
        self.size, self.rank, self._libraries = size, 1, libraries

    def allgather(self, mine: Any) -> list[Any]:
        if isinstance(mine, tuple):
            return [("a", self._libraries[0]), ("b", self._libraries[1])]
        return ["10.0.0.1:1", mine]

    def bcast(self, mine: Any) -> Any:
        return "10.0.0.1:2" if isinstance(mine, str) else 0

    def Split_type(self, kind: int) -> _World:  # noqa: N802  its name in MPI
        del kind
        return self


def _library(world: _World, level: int = 3, name: str = "MPI 5") -> dict[str, Any]:
    """Modules in place of mpi4py."""
    module = SimpleNamespace(
        COMM_WORLD=world,
        COMM_TYPE_SHARED=1,
        THREAD_MULTIPLE=3,
        Init_thread=lambda _: level,
        Get_library_version=lambda: f"{name}\nof somebody",
    )
    return {"mpi4py": SimpleNamespace(rc=SimpleNamespace()), "mpi4py.MPI": module}


@pytest.fixture(autouse=True)
def _not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_mpi", None)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "8", "PMIX_RANK": "0"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "8"}, 1),  # srun of something that is no MPI program
        ({"PMI_SIZE": "2", "PADDLE_TRAINERS_NUM": "4"}, 1),  # the launcher's ranks are its own
    ],
)
def test_the_launcher_tells_how_many_ranks_it_started(
    environment: dict[str, str], expected: int
) -> None:
    assert mpi.started_ranks(environment)[0] == expected
    assert expected > 1 or not mpi.adopt(environment)


def test_a_rank_gets_the_variables_of_paddles_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in _library(_World()).items():
        monkeypatch.setitem(sys.modules, name, module)
    environment = {"PMI_SIZE": "2", "POD_IP": "127.0.0.7"}
    assert mpi.adopt(environment)
    own = environment["PADDLE_CURRENT_ENDPOINT"]
    assert own.startswith("127.0.0.7:")
    expected = {
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_LOCAL_RANK": "1",
        "PADDLE_LOCAL_SIZE": "2",
        "PADDLE_TRAINER_ENDPOINTS": f"10.0.0.1:1,{own}",
        "PADDLE_MASTER": "10.0.0.1:2",
        mpi.HOST: "0",
    }
    assert {name: environment[name] for name in expected} == expected
    assert not mpi.adopt(environment)  # it has them


@pytest.mark.parametrize(
    ("world", "level", "told"),
    [
        (
            _World(size=1),
            3,
            r"Open MPI started 2 ranks, but the MPI library of mpi4py \(MPI 5\) finds 1: expected",
        ),
        (_World(), 1, "MPI 5: expected MPI_THREAD_MULTIPLE, found level 1"),
        (
            _World(libraries=("MPI 5", "MPI 4")),
            3,
            "rank 1 on host b: MPI library MPI 4, expected MPI 5 as on rank 0 on host a",
        ),
    ],
)
def test_an_mpi_that_does_not_fit_is_an_error_that_names_both(
    world: _World, level: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in _library(world, level).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ConfigError, match=f"^{told}"):
        mpi.adopt({"OMPI_COMM_WORLD_SIZE": "2"})


def test_a_library_that_would_abort_under_the_launcher_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, module in _library(_World(), name="MPICH Version: 5.0.2").items():
        monkeypatch.setitem(sys.modules, name, module)
    told = r"^Open MPI started 2 ranks, but .* \(MPICH Version: 5\.0\.2\) is of another ABI"
    with pytest.raises(ConfigError, match=told):
        mpi.adopt({"OMPI_COMM_WORLD_SIZE": "2"})


def test_a_missing_library_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"^Open MPI started 2 ranks.*paddlebox\[mpi\]"):
        mpi.adopt({"OMPI_COMM_WORLD_SIZE": "2"})


def _mpiexec() -> str:
    """Its path. Skips the test if there is none."""
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("there is no mpiexec")
    return found


def _run(mpiexec: str, ranks: int, *words: str, hosts: bool = False) -> Any:
    """Runs Python on `ranks` ranks. hosts: each is a host of its own."""
    own = f"{mpi.HOST}=${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} " if hosts else ""
    names = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    more = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "POD_IP": "127.0.0.1"}
    return subprocess.run(
        [mpiexec, "-n", str(ranks), "sh", "-c", f'{own}exec "$@"', "sh", sys.executable, *words],
        env={**os.environ, **names, **root, **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.slow
def test_ranks_of_mpiexec_end_with_the_bits_of_ranks_of_the_launcher(tmp_path: Path) -> None:
    mpiexec = _mpiexec()
    passes = _passes(tmp_path / "data", 2)
    expected = _train(tmp_path / "launched", 2, passes)
    for name, hosts in (("near", False), ("far", True)):
        folder = tmp_path / name
        told = _configured(folder, 2)
        settings = folder / "settings.json"
        settings.write_text(json.dumps([{"passes": passes, **told}]))
        done = _run(mpiexec, 2, str(ROOT / "tests/ranks/worker.py"), str(settings), hosts=hosts)
        assert done.returncode == 0, done.stdout + done.stderr
        found = _written(folder, 2)
        assert found["on_one_host"] == (not hosts)
        assert found["link"] == {"near": "", "far": "MpiLink"}[name]
        assert (found["digest"], found["dense"]) == (expected["digest"], expected["dense"])


@pytest.mark.slow
def test_mpiexec_ends_all_ranks_when_one_fails(tmp_path: Path) -> None:
    mpiexec = _mpiexec()
    told = _configured(tmp_path / "run", 2, failing_rank=1)
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps([{"passes": _passes(tmp_path / "data", 2), **told}]))
    done = _run(mpiexec, 2, str(ROOT / "tests/ranks/worker.py"), str(settings), hosts=True)
    assert done.returncode != 0
    assert "ValueError: the step of this rank fails" in done.stdout + done.stderr
