"""Which ranks share a node."""

from __future__ import annotations

import os

from paddlebox.errors import ConfigError


def ranks_per_node(size: int, given: int = 0) -> int:
    """The number of ranks per node. The first node has the first ranks, and so on.

    Args:
        size: number of all ranks.
        given: `ranks.per_node`; 0: count the ranks on each host that the launcher names.

    Raises:
        ConfigError: nodes have different numbers of ranks.
    """
    if given:
        if size % given:
            raise ConfigError(f"ranks.per_node is {given}, which does not divide {size} ranks")
        return given
    endpoints = [e for e in os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",") if e]
    hosts = [endpoint.rsplit(":", 1)[0] for endpoint in endpoints]
    if len(hosts) != size:
        return size  # not started by the launcher: one node
    per_node = hosts.count(hosts[0])
    if any(
        hosts[rank] != hosts[rank - rank % per_node] for rank in range(size)
    ) or size != per_node * len(set(hosts)):
        raise ConfigError(
            f"the ranks' hosts are {', '.join(hosts)}: expected the same number of ranks on each "
            "node, one node after the other; launch each with the same --nproc_per_node, or set "
            "ranks.per_node"
        )
    return per_node
