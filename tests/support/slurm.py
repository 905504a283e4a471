"""A Slurm cluster of one node on this machine, at 127.0.0.1, without munge or root's services."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import free_port

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE_S = 120.0
_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
FirstJobId={job}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=100 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


@contextmanager
def local_slurm(folder: Path, cpus: int) -> Iterator[dict[str, str]]:
    """Starts Slurm. Yields the variables with which srun uses it. Skips the test without Slurm."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client")
    if os.getuid() != 0:
        pytest.skip("slurmd needs root")
    folder.mkdir()
    fields = {"folder": folder, "cpus": cpus, "user": "root", "host": socket.gethostname()}
    ports = [free_port(), free_port()]
    # MPICH names its shared memory after the job's number. What a killed job left in /dev/shm would
    # be taken for that of this cluster's first job if every cluster began with number 1.
    job = random.SystemRandom().randrange(1, 60_000_000)
    (folder / "slurm.conf").write_text(_CONFIG.format(**fields, ports=ports, job=job))
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
    daemons = [
        subprocess.Popen(
            [name, "-D", *more],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, *more in (("slurmctld", "-c"), ("slurmd",))
    ]
    try:
        _wait_until_idle(environment, folder)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    until = time.monotonic() + _PATIENCE_S
    while True:
        told = subprocess.run(
            ["sinfo", "-h", "-o", "%T"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if told.stdout.strip() == "idle":
            return
        logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
        assert time.monotonic() < until, told.stdout + told.stderr + logs
        time.sleep(0.1)
