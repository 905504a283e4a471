"""What a call of the API needs of the program that makes it: Paddle, the log and the signals."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from paddlebox import mpi
from paddlebox.config import Config, Program
from paddlebox.errors import ConfigError
from paddlebox.launch import cpu, gpu, process

log = logging.getLogger("paddlebox")


@contextlib.contextmanager
def working(config: Config) -> Iterator[None]:
    """Show the log of the project during the block, and import Paddle, with the settings of the
    command line, unless the program has done so. Paddle's mode, static or dynamic, its device and
    its flags are afterwards what they were. Raises: ConfigError if the program has imported Paddle
    with FLAGS_enable_pir_api=0, and `trainer.program` is pir."""
    with _log_shown():
        trainer = config.trainer
        if "paddle" in sys.modules:
            process.load()
            _check_program(trainer.program)
        else:
            mpi.adopt()  # the settings depend on the number of ranks of this host
            for line in cpu.apply(trainer.program, trainer.dense_threads):
                log.debug("%s", line)
            gpu.offer(config.hbm.place)
            process.load()
        with _paddle_restored():
            yield


@contextlib.contextmanager
def _paddle_restored() -> Iterator[None]:
    import paddle

    dynamic, device = paddle.in_dynamic_mode(), paddle.get_device()
    flags = paddle.get_flags(["FLAGS_enable_api_kernel_fallback", "FLAGS_use_stride_kernel"])
    try:
        yield
    finally:
        (paddle.disable_static if dynamic else paddle.enable_static)()
        paddle.set_device(device)
        paddle.set_flags(flags)


@contextlib.contextmanager
def stoppable(run_dir: Path) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block as they end a command. In other threads than the main
    one, which Python does not interrupt, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from paddlebox.training import interrupt

    with interrupt.remembered():
        try:
            yield
        except KeyboardInterrupt as error:
            text = "%s: stopped; the store is at its last commit, and the same call continues there"
            log.warning(text, run_dir)
            raise error.with_traceback(None) from None  # it shows where the call was, not the step


@contextlib.contextmanager
def _log_shown() -> Iterator[None]:
    """Print the project's log, from level INFO, unless the program has configured logging."""
    if logging.getLogger().handlers or log.handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(process.LOG_FORMAT))
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level or logging.INFO)
    log.propagate = False  # if the program configures logging in a callback: each line once
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


def _check_program(program: Program) -> None:
    import paddle

    name = "FLAGS_enable_pir_api"
    if program is Program.PIR and not paddle.get_flags(name)[name]:
        raise ConfigError(
            f"trainer.program pir needs {name}=1, but this process imported Paddle with 0: restart "
            "the process or the notebook's kernel without it, or choose dygraph"
        )
