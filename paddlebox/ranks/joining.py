"""How ranks join: all check that they run one build and config; those of a host share memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox import _native, mpi
from paddlebox.config import Config, load_slots
from paddlebox.config.stored import OF_HOST, within
from paddlebox.errors import ConfigError, StoreError
from paddlebox.ranks.connecting import SECRET_FILE, read_secret
from paddlebox.store.group import Group

core = _native.core


def share_memory(world: Group, channels: int) -> tuple[list[int], Any]:
    """The ranks of this host, and the HostGroup that they share. If one of them cannot share
    memory: only this rank, and None; they then use the network. Collective."""
    hosts = world.gather("host", _host())
    near = [rank for rank in range(world.size) if hosts[rank] == hosts[world.rank]]
    names = [f"rank {rank}" for rank in near]
    memory: Any = None

    def create(_: str) -> str:
        nonlocal memory
        if world.rank != near[0]:
            return "-"
        memory = core.HostGroup.create(channels, names)
        return str(memory.where)

    def open_it(where: str) -> str:
        nonlocal memory
        if memory is None:
            memory = core.HostGroup.open(where, near.index(world.rank), channels, names)
        return "-"

    def watch(_: str) -> str:
        memory.watch()
        return "-"

    done = ["-"] * len(near)  # what the step before returned on each rank; "" where it failed
    # Each rank of the job gathers in each step, also if its own host shares nothing.
    for step in (create, open_it, watch):
        mine = ""
        if len(near) > 1 and all(done):
            with contextlib.suppress(StoreError):
                mine = step(done[0])
        found = world.gather("memory", mine)
        done = [found[rank] for rank in near]
    return (near, memory) if all(done) else ([world.rank], None)


def _host() -> str:
    """Equal for two ranks if one launcher started them on one system, in the same namespaces of
    processes and of the network."""
    local = int(os.environ.get("PADDLE_LOCAL_RANK", "0"))
    launcher = os.environ.get(mpi.HOST, int(os.environ.get("PADDLE_TRAINER_ID", "0")) - local)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net")]
    return " ".join([str(launcher), boot, *spaces])


Gather = Callable[[str, Any], list[Any]]


def build() -> str:
    """Names this build: a digest of the package's modules. One of them has the version, and one
    describes the native library (setup.py)."""
    folder, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def meet(gather: Gather) -> list[str]:
    """Check that all ranks run one build, and have a secret or have none. Collective.

    Returns: (R) the name of each rank in errors, such as "rank 1 on host b".

    Raises: ConfigError on all ranks.
    """
    try:
        secret = "a secret" if read_secret() else "no secret"
    except ConfigError as error:
        secret = str(error)
    hello = {"host": socket.gethostname(), "build": build(), "secret": secret}
    of_ranks = gather("hello", hello)
    names = [f"rank {rank} on host {found['host']}" for rank, found in enumerate(of_ranks)]
    for name, found in zip(names, of_ranks, strict=True):
        if found["secret"].startswith(SECRET_FILE):
            raise ConfigError(f"{name}: {found['secret']}")
        if found["secret"] != of_ranks[0]["secret"]:
            raise ConfigError(
                f"{name} has {found['secret']} ({SECRET_FILE}), expected {of_ranks[0]['secret']} "
                f"as {names[0]}: give all ranks the same file, or none of them"
            )
        if found["build"] != of_ranks[0]["build"]:
            raise ConfigError(
                f"{name} runs build {found['build']} of paddlebox, expected "
                f"{of_ranks[0]['build']} as {names[0]}: install the same paddlebox on all hosts"
            )
    return names


def check_same(config: Config, names: Sequence[str], gather: Gather) -> None:
    """Check that all ranks have one config, except for the keys of OF_HOST, and the same slots.
    Collective. names: of `meet`. Raises: ConfigError on all ranks."""
    mine = {
        key: value
        for key, value in _leaves(config.model_dump(mode="json"), "")
        if not within(key, OF_HOST)
    }
    mine |= _slots(config.data.slots)
    text = json.dumps(mine, sort_keys=True)
    if len(set(gather("config", hashlib.sha256(text.encode()).hexdigest()))) == 1:
        return
    first, *others = gather("config keys", mine)
    for name, theirs in zip(names[1:], others, strict=True):
        for key in sorted({*first, *theirs}):
            if first.get(key) != theirs.get(key):
                raise ConfigError(
                    f"{name}: {key} is {theirs.get(key)!r}, expected {first.get(key)!r} as on "
                    f"{names[0]}: start all ranks with the same config"
                )


def _slots(path: str) -> dict[str, Any]:
    """The content of slots.yaml, or why it has none."""
    try:
        slots = load_slots(path, labelled=False)
    except ConfigError as error:
        return {"data.slots": str(error)}
    return dict(_leaves(slots.model_dump(mode="json"), "data.slots: "))


def _leaves(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            yield from _leaves({str(at): one for at, one in enumerate(value)}, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def address_of_host() -> str:
    return os.environ["PADDLE_CURRENT_ENDPOINT"].rsplit(":", 1)[0]
