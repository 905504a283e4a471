"""Checks that each user is on one rank, because ranks do not exchange instances yet."""

from __future__ import annotations

import base64

import numpy as np

from paddlebox.errors import ConfigError
from paddlebox.store.coordinator import Coordinator

_USERS = 1 << 17  # of a rank in one message: 1 MiB


def check_apart(world: Coordinator, users: np.ndarray) -> None:
    """Check that no other rank has one of these users. Collective, in the thread that loads.

    Args:
        users: (n) uint64, the users of this rank in a pass, each once.

    Raises: ConfigError if a user is on several ranks.
    """
    if world.size == 1:
        return
    rounds = world.max("users", max(1, -(-len(users) // _USERS)))
    for number in range(rounds):
        mine = users[users % np.uint64(rounds) == number]
        texts = world.gather("users of ranks", base64.b64encode(mine.tobytes()).decode())
        of_rank = [np.frombuffer(base64.b64decode(text), np.uint64) for text in texts]
        found, counts = np.unique(np.concatenate(of_rank), return_counts=True)
        if np.any(counts > 1):
            user = found[counts > 1][0]
            ranks = [str(rank) for rank, has in enumerate(of_rank) if user in has]
            raise ConfigError(
                f"data.sequences: the user with feasign {user} is in the files of ranks "
                f"{' and '.join(ranks)}; expected all instances of a user in the files of one "
                "rank, because ranks do not exchange instances yet: write one file for each group "
                "of users and rank, or train with one rank"
            )
