"""Memory that the ranks of one host share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddlebox import _native, mpi
from paddlebox.errors import StoreError
from paddlebox.store.coordinator import Coordinator

core = _native.core


def share_memory(world: Coordinator, channels: int) -> tuple[list[int], Any]:
    """Share memory with the ranks of this host. Collective.

    Args:
        world: the ranks.
        channels: number of channels in the memory.

    Returns: the ranks that share it, and a HostGroup. If a rank of the host cannot share memory:
        only this rank, and None. The ranks of the host then use the network.
    """
    hosts = world.gather("host", _host())
    near = [rank for rank in range(world.size) if hosts[rank] == hosts[world.rank]]
    names = [f"rank {rank}" for rank in near]
    memory: Any = None

    def on_all(act: Callable[[], str]) -> list[str]:
        """What `act` returns on each rank of this host; "" where it failed."""
        mine = ""
        if len(near) > 1:
            with contextlib.suppress(StoreError):
                mine = act()
        found = world.gather("memory", mine)
        return [found[rank] for rank in near]

    def create() -> str:
        nonlocal memory
        if world.rank != near[0]:
            return "-"
        memory = core.HostGroup.create(channels, names)
        return str(memory.where)

    def open_it() -> str:
        nonlocal memory
        if not created[0]:
            return ""
        if world.rank != near[0]:
            memory = core.HostGroup.open(created[0], near.index(world.rank), channels, names)
        return "-"

    def watch() -> str:
        if not all(opened):
            return ""
        memory.watch()
        return "-"

    # Each rank of the job gathers three times, also where its own host shares nothing.
    created = on_all(create)
    opened = on_all(open_it)
    watched = on_all(watch)
    if all(opened) and all(watched):
        return near, memory
    return [world.rank], None


def _host() -> str:
    """A text that is equal for two ranks if one launcher started them on one system, in the same
    namespaces of processes and of the network."""
    local = int(os.environ.get("PADDLE_LOCAL_RANK", "0"))
    launcher = os.environ.get(mpi.HOST, int(os.environ.get("PADDLE_TRAINER_ID", "0")) - local)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net")]
    return " ".join([str(launcher), boot, *spaces])
