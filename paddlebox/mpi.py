"""Ranks that mpiexec or srun started: their numbers and addresses, from MPI.

`adopt` sets the environment variables of Paddle's launcher if MPI started this process. Call it
before Paddle is imported. It needs mpi4py and the library of the MPI to which mpiexec belongs (the
extra `mpi`).
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Any

from paddlebox.errors import ConfigError

#: The first rank of this host. Ranks of one host share memory only if it is equal.
HOST = "PADDLEBOX_HOST"
#: Variables in which MPI's own launchers give the number of ranks, and the MPI they belong to.
_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI",
    "PMI_SIZE": "MPICH or a relative of it",
    "SLURM_STEP_NUM_TASKS": "srun",
}
#: What the libraries of MPICH's ABI call themselves. They abort under Open MPI's launcher.
_OF_MPICH = ("MPICH", "Intel(R) MPI", "MVAPICH")
_ITS_PMI = ("PMI_RANK", "PMIX_RANK")  # srun sets one of them if it serves an MPI
_mpi: Any = None


def started_ranks(environment: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """The number of ranks that an MPI launcher started, and its MPI; (1, "") if none did, or if
    Paddle's launcher, itself started by MPI, started this rank."""
    if "PADDLE_TRAINERS_NUM" in environment:
        return 1, ""
    for name, launcher in _SIZES.items():
        if launcher == "srun" and not any(pmi in environment for pmi in _ITS_PMI):
            continue
        if environment.get(name, "").isdigit():
            return int(environment[name]), launcher
    return 1, ""


def adopt(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Set the variables of Paddle's launcher if mpiexec or srun started this process. Collective.
    Returns whether it did. Raises: ConfigError if there is no MPI library, or it does not belong to
    the launcher."""
    size, launcher = started_ranks(environment)
    if size < 2:
        return False
    mpi = load(size, launcher)
    world = mpi.COMM_WORLD
    address = _address(environment)
    here = world.Split_type(mpi.COMM_TYPE_SHARED)
    endpoints = world.allgather(f"{address}:{_free_port(address)}")
    first = str(here.bcast(world.rank))
    environment.setdefault(HOST, first)
    names = {
        "PADDLE_TRAINER_ID": str(world.rank),
        "PADDLE_TRAINERS_NUM": str(world.size),
        "PADDLE_LOCAL_RANK": str(here.rank),
        "PADDLE_LOCAL_SIZE": str(here.size),
        "PADDLE_CURRENT_ENDPOINT": endpoints[world.rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_MASTER": world.bcast(f"{address}:{_free_port(address)}"),
    }
    environment.update(names)
    return True


def load(size: int, launcher: str) -> Any:
    """The module mpi4py.MPI, initialized for calls from several threads. size: the ranks that
    `launcher` started. Raises: as `adopt`."""
    global _mpi
    if _mpi is not None:
        return _mpi
    try:
        package = importlib.import_module("mpi4py")
        package.rc.initialize, package.rc.finalize = False, False
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"{launcher} started {size} ranks, which need mpi4py and an MPI library: "
            f"{str(error).splitlines()[0]}: "
            "install paddlebox[mpi] and the MPI to which mpiexec belongs"
        ) from None
    library = mpi.Get_library_version().splitlines()[0].strip()
    if launcher == "Open MPI" and library.startswith(_OF_MPICH):
        raise _another_mpi(size, launcher, library, "is of another ABI")
    provided, world = mpi.Init_thread(mpi.THREAD_MULTIPLE), mpi.COMM_WORLD
    if world.size != size:
        raise _another_mpi(size, launcher, library, f"finds {world.size}")
    if provided < mpi.THREAD_MULTIPLE:
        raise ConfigError(
            f"{library}: expected MPI_THREAD_MULTIPLE, found level {provided}: use a build of MPI "
            "with support for threads"
        )
    others = world.allgather((socket.gethostname(), library))
    for rank, (host, theirs) in enumerate(others):
        if theirs != others[0][1]:
            raise ConfigError(
                f"rank {rank} on host {host}: MPI library {theirs}, expected {others[0][1]} as on "
                f"rank 0 on host {others[0][0]}: install the same MPI on all hosts"
            )
    _mpi = mpi
    return mpi


def _another_mpi(size: int, launcher: str, library: str, found: str) -> ConfigError:
    return ConfigError(
        f"{launcher} started {size} ranks, but the MPI library of mpi4py ({library}) {found}: "
        "expected the library of the MPI to which mpiexec belongs; install that one, or start the "
        "ranks with the mpiexec of this one"
    )


def loaded() -> Any:
    """What `load` returned; None if MPI did not start this rank."""
    return _mpi


def finish() -> None:
    """End MPI, if it was begun. Waits for all ranks. A rank that fails must not call it: mpiexec
    ends the others when a rank ends without it."""
    if _mpi is not None and not _mpi.Is_finalized():
        _mpi.Finalize()


def _address(environment: Mapping[str, str]) -> str:
    """POD_IP, as Paddle's launcher takes it, or the address of the host's name."""
    if given := environment.get("POD_IP", ""):
        return given
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ConfigError(
            f"the host's name {socket.gethostname()} has no address: {error}: set POD_IP to the "
            "address that other hosts reach"
        ) from None


def _free_port(address: str) -> int:
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigError(
            f"{address} is no address of host {socket.gethostname()}: {error}: set POD_IP to one"
        ) from None
