"""A reader beside processes that are killed: what it has seen committed must stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store.rank_stores import existing_stores, pass_of, rank_versions
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep.verify import verify


class Witness:
    """Looks at what is newest again and again."""

    def __init__(self, newest: Callable[[], int], tries: int = 1) -> None:
        """tries: looks that must all find less than was there before; ranks' stores are read one
        after another, while ranks go on."""
        self.seen = newest()
        self.errors: list[str] = []
        self._newest, self._tries = newest, tries

    def look(self) -> None:
        found = -1
        for _ in range(self._tries):
            try:
                found = max(found, self._newest())
            except StoreError as error:
                self.errors.append(f"a reader beside it: {error}")
                return
            if found >= self.seen:
                break
        if found < self.seen:
            self.errors.append(f"a reader saw {found} after {self.seen}")
        self.seen = max(self.seen, found)


def newest_version(store: Path) -> int:
    """0 without a store."""
    try:
        with VersionStore.open_reader(store) as manifest:
            head = manifest.newest()
            return head.version if head is not None else 0
    except StoreError as error:
        if "no store here" in str(error):
            return 0
        raise


def newest_pass(store: Path) -> int:
    """That every rank has committed; 0: none yet, or they went on while they were read.

    Args:
        store: of the first rank.
    """
    try:
        return pass_of(rank_versions(store)[0][1])
    except CorruptionError:
        raise
    except StoreError:
        return 0


def unsound(store: Path) -> list[str]:
    """What is wrong with the stores of a run that has ended, all ranks': damage, and files that no
    version names, though the last process took away what those before it had left."""
    wrong = []
    for each in existing_stores(store):
        found = verify(each)
        wrong += [f"{each}: {damage.file}: {damage.message}" for damage in found.damage]
        wrong += [f"{each}: no version names {name}" for name in found.unreferenced]
    return wrong
