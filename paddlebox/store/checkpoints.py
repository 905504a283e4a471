"""Checkpoints: versions with a name, which stay until the name is removed.

STORE/checkpoints/<name>/ holds hard links to the files of one version, in the same layout as the
store, with the other tables of a set in tables/. The folder costs the disk space of files that the
store would otherwise have removed. `VersionStore.prune` keeps the version of each such folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from paddlebox.store import files

FOLDER = "checkpoints"
UNDER_WAY = ".tmp"  # suffix of a name that is being added or removed


@dataclass(frozen=True)
class Checkpoint:
    name: str
    version: int


def checkpoints(store: str) -> list[Checkpoint]:
    """The named versions of a store, by name."""
    folder = os.path.join(store, FOLDER)
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if not name.endswith(UNDER_WAY):
            versions = files.manifest_versions(os.path.join(folder, name))
            found += [Checkpoint(name, version) for version in versions[:1]]
    return found
