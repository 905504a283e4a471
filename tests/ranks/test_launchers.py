"""Ranks end with the same bits under Paddle's launcher, mpiexec, srun and Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.ranks.launched import CONFIG, command, overrides, summary
from tests.support.marks import long
from tests.support.ray_cluster import RayCluster, needs_ray
from tests.support.slurm import local_slurm

Started = tuple[list[str], dict[str, str]]  # a command in place of `python`, and its environment


def _require_mpi() -> str:
    """Path of mpiexec. Skips the test without it."""
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("there is no mpiexec")
    return found


@contextmanager
def _mpiexec(_: Path) -> Iterator[Started]:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    more = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    yield [_require_mpi(), "-n", "2", sys.executable], {**root, **more}


@contextmanager
def _srun(folder: Path) -> Iterator[Started]:
    _require_mpi()
    with local_slurm(folder / "slurm", cpus=2) as environment:
        yield ["srun", "--kill-on-bad-exit", "-n", "2", "--mpi=pmi2", sys.executable], environment


@contextmanager
def _ray(_: Path) -> Iterator[Started]:
    with RayCluster(1, cpus=2) as cluster:
        ray = [sys.executable, "-m", "paddlebox", "train-on-ray", "--address", cluster.address]
        yield [*ray, "--ranks-per-node", "2", "--"], {}


# tests/ranks/test_mpi.py has a slow test of mpiexec.
@pytest.mark.slow
@pytest.mark.parametrize("launcher", [long(_mpiexec), _srun, pytest.param(_ray, marks=needs_ray)])
def test_ranks_of_any_launcher_end_with_the_same_bits(
    launcher: object, undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    train = command(1, "train", run_dir, CONFIG, *overrides(data, tmp_path))
    with launcher(tmp_path) as (start, more):  # type: ignore[operator]
        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "POD_IP": "127.0.0.1"}
        done = subprocess.run(
            [*start, *train],
            cwd=ROOT,
            env={**os.environ, **environment, **more},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    for rank in ("", "ranks/1"):
        expected, found = summary(undisturbed / rank), summary(run_dir / rank)
        for name in ("sparse_digest", "dense_digest", "samples"):
            assert found[name] == expected[name]
