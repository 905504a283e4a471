"""Named checkpoints: versions that stay until they are unnamed.

STORE/checkpoints/<name>/ holds hard links to the files of one version, laid out as in the store;
those of a group's other tables too, below tables/. It costs what has changed since, as the store
would have removed those files. The folder itself is the reference: `Manifest.prune` keeps the
version of each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from paddlebox.store import files

FOLDER = "checkpoints"
UNDER_WAY = ".tmp"  # of a name that is being given or taken back


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
