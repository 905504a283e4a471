"""Settings, ranks and exit codes of the command lines that use Paddle."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paddlebox import heartbeat, mpi
from paddlebox.config import Config, HbmPlace, TrainerConfig
from paddlebox.errors import (
    ConfigError,
    DataError,
    GuardError,
    PaddleBoxError,
    StoreError,
    StoreLockedError,
    TrainingError,
)
from paddlebox.launch import cpu, gpu

if TYPE_CHECKING:
    from paddlebox.store.group import Group

log = logging.getLogger("paddlebox")

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

# The first match counts. docs/running.md lists the codes. argparse exits with 2 as well.
_EXIT_CODES: tuple[tuple[type[PaddleBoxError], int], ...] = (
    (ConfigError, 2),
    (DataError, 3),
    (StoreLockedError, 6),
    (StoreError, 4),
    (GuardError, 7),
    (TrainingError, 5),
)


def configure(
    trainer: TrainerConfig, verbose: bool = False, place: HbmPlace = HbmPlace.HOST
) -> None:
    mpi.adopt()  # the settings depend on the number of ranks of this host
    logging.basicConfig(format=LOG_FORMAT, stream=sys.stderr)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    for line in cpu.apply(trainer.program, trainer.dense_threads):
        log.debug("%s", line)
    gpu.offer(place)


def prepare(trainer: TrainerConfig, verbose: bool = False, place: HbmPlace = HbmPlace.HOST) -> None:
    """Set up the log, the CPU libraries and the GPU, then import Paddle. verbose: log at level
    DEBUG. place: `hbm.place`."""
    configure(trainer, verbose, place)
    load()


def load() -> None:
    """Import Paddle and the native library without the messages that Paddle prints then."""
    cpu.keep_heaps_small()
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle's own log: errors only
    warnings.filterwarnings("ignore", message="Tensor do not have 'place' interface")
    root, printed = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        with contextlib.redirect_stderr(printed):
            importlib.import_module("paddlebox._native")
    finally:
        root.handlers[:] = handlers  # the import configures the root logger
        root.setLevel(level)
        # Paddle advises one OpenMP thread for every model. The measurements in `cpu` contradict it.
        advice = ("WARNING: OMP_NUM_THREADS set to", "PLEASE USE OMP_NUM_THREADS WISELY")
        for line in printed.getvalue().splitlines():
            if not line.startswith(advice):
                print(line, file=sys.stderr)


@contextlib.contextmanager
def joined(config: Config) -> Iterator[Group]:
    """Join the ranks of this job. The end of the block waits for all ranks."""
    from paddlebox.ranks import World

    world = World.join(config, heartbeat.of_process())
    try:
        yield world
        world.wait("end")
    except BaseException as error:
        world.leave(error)
        raise
    finally:
        world.close()


class Ended:
    """How a command ended. code: its exit code (docs/running.md)."""

    code = 0


@contextlib.contextmanager
def guarded() -> Iterator[Ended]:
    """Run a command in the block. An error that a user can act on is printed to standard error as
    one line, and sets the exit code."""
    ended = Ended()
    try:
        yield ended
    except PaddleBoxError as error:
        ours = (k for k in type(error).__mro__ if k.__module__ == PaddleBoxError.__module__)
        print(f"{next(ours).__name__}: {error}", file=sys.stderr)  # the name that the docs use
        ended.code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    except ImportError as error:
        if error.name not in ("paddle", "paddlebox._ops"):  # the errors of these say what to do
            raise
        print(f"ImportError: {error}", file=sys.stderr)
        ended.code = 1
    except OSError as error:
        if error.filename is None:  # such as a broken pipe, which `sigpipe` handles
            raise
        print(f"OSError: {error.filename}: {error.strerror}", file=sys.stderr)
        ended.code = 1
    except KeyboardInterrupt as error:
        number, end = getattr(error, "signal", None), "stopped"
        if number is not None:  # `interrupt.Stopped`, of a run
            end += "; the store is at its last commit, and the same command continues from there"
        print(f"{signal.Signals(number or signal.SIGINT).name}: {end}", file=sys.stderr)
        ended.code = 128 + (number or signal.SIGINT)
