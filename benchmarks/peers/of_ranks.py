"""The peers of ranks.py: other libraries that train on R processes, with our network and cores.

Each runs in the environment that has it, with our batch size, its memory on huge pages
(huge_pages.py) and, but for FROM_TEXT, its batches in memory. It returns the samples/s of all its
trainers, and for torchrec the way in which its MLP ran.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import UnavailableError

from peers import huge_pages
from peers.jobs import BEST_ENV, Jobs, launcher

SLOTS, DENSE, DIM = 26, 13, 16
FROM_TEXT = "torchrec, both from text"
HERE = Path(__file__).resolve().parent
Answer = dict[str, Any]  # samples_per_s, and perhaps the way
_SERVERS = 2  # with 2 and 4 trainers, at least as fast as one server


@dataclass(frozen=True)
class Setting:
    folder: Path
    ranks: int
    keys: int
    batch: int  # per rank
    steps: int  # number of timed steps
    cores: Sequence[int]
    ps_python: Path  # Python of an environment with Paddle 3.0.0


def data_parallel(setting: Setting) -> Answer:
    """Paddle's DataParallel, with a replica of all rows on each rank."""
    command = launcher(setting.ranks, setting.folder / "log-peer")
    return _trained(setting, [*command, str(HERE / "data_parallel.py"), *_steps(setting)])


def torchrec(setting: Setting, *more: str) -> Answer:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(setting.ranks)]
    command = [sys.executable, *run, str(HERE / "torchrec_rank.py"), *_steps(setting), *more]
    return _trained(setting, command, BEST_ENV)


def torchrec_from_text(setting: Setting) -> Answer:
    """torchrec, which reads the files of our job."""
    return torchrec(setting, "--text", *map(str, sorted(setting.folder.glob("part-???.txt"))))


def parameter_server(setting: Setting) -> Answer:
    """The parameter server of Paddle 3.0.0. Its servers share the trainers' cores, as our stores
    do."""
    folder = setting.folder / "ps"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_one_slot_files(folder, setting)
    ports = _free_ports(min(setting.ranks, _SERVERS) + setting.ranks)
    trainers, servers = ports[: setting.ranks], ports[setting.ranks :]
    env = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(f"127.0.0.1:{port}" for port in servers),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(f"127.0.0.1:{port}" for port in trainers),
        "PADDLE_TRAINERS_NUM": str(setting.ranks),
        "POD_IP": "127.0.0.1",
        # Trainers meet in a folder. Without these variables, barriers return at once.
        "PADDLE_WITH_GLOO": "1",
        "PADDLE_GLOO_RENDEZVOUS": "2",
        "PADDLE_GLOO_FS_PATH": str(folder / "gloo"),
        "FLAGS_enable_pir_api": "0",  # the new IR has no train_from_dataset
        "FLAGS_eager_delete_tensor_gb": "-1",  # as in our static programs
        "PYTHONPATH": "",  # it names another Paddle
        **huge_pages.ENV,
    }
    out = folder / "out.json"
    script = [str(setting.ps_python), str(HERE / "parameter_server.py")]
    script += ["--keys", str(setting.keys), "--batch", str(setting.batch), "--out", str(out)]
    with Jobs() as jobs:
        for number, port in enumerate(servers):
            own = {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port)}
            jobs.start(script, setting.cores, folder / f"server-{number}.log", {**env, **own})
        # A trainer that starts before its server fails, or continues without it.
        jobs.until(lambda: all(map(_listens, servers)))
        training = []
        for number, port in enumerate(trainers):
            own = {"TRAINING_ROLE": "TRAINER", "PADDLE_PORT": str(port)}
            own["PADDLE_TRAINER_ID"] = str(number)
            command = [*script, str(folder / f"part-{number}.txt")]
            log = folder / f"trainer-{number}.log"
            training.append(jobs.start(command, setting.cores, log, {**env, **own}))
        jobs.ended(training)
    return _answer(out)


PEERS: dict[str, Callable[[Setting], Answer]] = {
    "Paddle's DataParallel": data_parallel,
    "Paddle 3.0.0's parameter server": parameter_server,
    "torchrec": torchrec,
    FROM_TEXT: torchrec_from_text,
}


def check(ps_python: Path) -> None:
    """Raises UnavailableError if a peer is not available on this machine."""
    if not ps_python.exists():
        raise UnavailableError(
            f"Paddle 3.0.0's parameter server: no {ps_python}: make bench-setup-ps"
        )
    if importlib.util.find_spec("torchrec") is None:
        raise UnavailableError(f"torchrec: not in {sys.executable}'s environment: make bench-setup")


def write_one_slot_files(folder: Path, setting: Setting) -> None:
    """Writes part-R.txt for each trainer, with all ids in one slot, which takes fewer operators."""
    share = setting.keys // SLOTS
    for rank in range(setting.ranks):
        rng = np.random.default_rng(rank)
        rows = setting.steps * setting.batch
        ids = (rng.zipf(1.05, (rows, SLOTS)) % share) * SLOTS + np.arange(SLOTS) + 1
        values = rng.normal(size=(rows, DENSE)).round(3)
        labels = (rng.random(rows) < 0.25).astype(int)
        with open(folder / f"part-{rank}.txt", "w") as file:
            for label, row, dense in zip(labels, ids, values, strict=True):
                numbers = f"{SLOTS} {' '.join(map(str, row))} {DENSE} {' '.join(map(str, dense))}"
                file.write(f"1 {label} {numbers}\n")


def _steps(setting: Setting) -> list[str]:
    sizes = {"keys": setting.keys, "batch": setting.batch, "steps": setting.steps}
    return [word for name, size in sizes.items() for word in (f"--{name}", str(size))]


def _trained(setting: Setting, command: list[str], env: Mapping[str, str] | None = None) -> Answer:
    out = setting.folder / "peer.json"
    out.unlink(missing_ok=True)
    with Jobs() as jobs:
        log = setting.folder / "peer.log"
        command = [*command, "--out", str(out)]
        jobs.start(command, setting.cores, log, {**huge_pages.ENV, **(env or {})})
        jobs.ended()
    return _answer(out)


def _answer(out: Path) -> Answer:
    answer: Answer = json.loads(out.read_text())
    return answer


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
