"""The folder of an export: on a local disk, where each file is durable once it is written, or at a
URI."""

from __future__ import annotations

import os
from typing import Protocol

from paddlebox.errors import StoreError
from paddlebox.store import files
from paddlebox.store.remote import RemoteFolder, is_uri


class Folder(Protocol):
    """Names are relative to the folder, which need not exist. Raises: StoreError,
    OutOfSpaceError."""

    place: str  # for messages

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a file. After an error or a kill, it has its earlier content, or the new one."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The files at any depth below a folder: path relative to it -> bytes."""

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with its content, if it exists."""


class LocalFolder:
    def __init__(self, place: str) -> None:
        self.place = os.path.abspath(place)

    def read(self, name: str) -> bytes | None:
        path = os.path.join(self.place, name)
        try:
            with files.store_errors(path, "read"):
                return files.read(path)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise

    def write(self, name: str, content: bytes) -> None:
        path = os.path.join(self.place, name)
        files.make_folder(os.path.dirname(path))
        files.write_durably(path, content)

    def sizes(self, folder: str) -> dict[str, int]:
        below, found = os.path.join(self.place, folder), {}
        for where, _, names in os.walk(below):
            for name in names:
                path = os.path.join(where, name)
                found[os.path.relpath(path, below)] = os.path.getsize(path)
        return found

    def remove(self, name: str) -> None:
        path = os.path.join(self.place, name)
        with files.store_errors(path, "remove"):
            if os.path.lexists(path):
                files.remove(path)
                files.sync_folder(os.path.dirname(path))


class Below:
    """A folder inside another one."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self.place = f"{folder.place}/{name}"

    def read(self, name: str) -> bytes | None:
        return self._folder.read(f"{self._name}/{name}")

    def write(self, name: str, content: bytes) -> None:
        self._folder.write(f"{self._name}/{name}", content)

    def sizes(self, folder: str) -> dict[str, int]:
        return self._folder.sizes(f"{self._name}/{folder}")

    def remove(self, name: str) -> None:
        self._folder.remove(f"{self._name}/{name}")


def open_folder(place: str) -> Folder:
    """place: a local path or a URI that pyarrow knows. Raises: StoreError."""
    return RemoteFolder(place) if is_uri(place) else LocalFolder(place)
