"""What is asked of a table on several ranks that who there is can answer: see `OneRank`."""

from __future__ import annotations

from paddlebox.ranks.world import World
from paddlebox.store.one_rank import OneRank, key_ranges


class ManyRanks(OneRank):
    world: World

    @property
    def ranks(self) -> int:
        return self.world.size

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def key_range(self) -> tuple[int, int]:
        return key_ranges(self.world.size)[self.world.rank]

    def agree_parts(self, parts: int) -> int:
        """How many parts a pass is split into: as many as any rank needs."""
        return max(int(found) for found in self.world.gather("parts", str(parts).encode()))

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        return self.world.gather(what, mine)
