"""BoxFileMgr: PaddleBox's file manager, over pyarrow.fs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from paddlebox.errors import ConfigError, PassError
from paddlebox.store.remote import filesystem_of, is_uri

log = logging.getLogger(__name__)
T = TypeVar("T")

_BLOCK_BYTES = 8 << 20


class BoxFileMgr:
    """Works on the files of one file system. A path is absolute in it, or is a URI, of any file
    system.

    A call that fails logs a warning and returns what its docstring says, False by default, as in
    PaddleBox. A call before `init` raises a PassError.
    """

    def __init__(self) -> None:
        self._system: Any = None

    def init(self, fs_name: str, fs_ugi: str, conf_path: str) -> bool:
        """Open a file system.

        Args:
            fs_name: a URI that pyarrow.fs opens, such as hdfs://HOST:PORT; "": local disk.
            fs_ugi: USER,PASSWORD; only the user is used, and only for hdfs.
            conf_path: without effect: pyarrow.fs reads the configuration of Hadoop and of clouds.

        Raises: ConfigError for afs, which is not public.
        """
        scheme, _, host = fs_name.partition("://")
        if fs_name and (not host or scheme == "afs"):
            raise ConfigError(
                f"BoxFileMgr.init: expected a URI that pyarrow.fs opens (hdfs://, s3://, gs://), "
                f"or an empty name for local disk, found {fs_name!r}"
            )
        user = fs_ugi.partition(",")[0]
        if scheme == "hdfs" and user and "@" not in host:
            fs_name = f"hdfs://{user}@{host}"

        def opened() -> bool:
            self._system = filesystem_of(fs_name)[0] if fs_name else fs.LocalFileSystem()
            return True

        return _tried(f"init {fs_name}", opened, False)

    def finalize(self) -> None:
        """Close the file system. `init` may be called again."""
        self._system = None

    # ---- looking

    def exists(self, path: str) -> bool:
        return self._do("exists", path, lambda at: at.info.type != fs.FileType.NotFound, False)

    def file_size(self, path: str) -> int:
        """The bytes of a file; -1 if there is none."""
        return self._do("file_size", path, lambda at: at.info.size if at.is_file else -1, -1)

    def list_dir(self, path: str) -> list[str]:
        """The full paths of the entries of a folder, sorted; empty if there is none."""
        return [name for name, _ in self.list_info(path)]

    def list_info(self, path: str) -> list[tuple[str, int]]:
        """The entries of a folder with their bytes, 0 for a folder, sorted by path."""

        def listed(at: _Place) -> list[tuple[str, int]]:
            return [(entry.path, entry.info.size or 0) for entry in at.entries()]

        return self._do("list_info", path, listed, [])

    def dus(self, path: str) -> list[tuple[str, int]]:
        """The entries of a folder with the bytes of all files below them, sorted by path. For a
        file, its own entry."""

        def summed(at: _Place) -> list[tuple[str, int]]:
            entries = [at] if at.is_file else at.entries()
            return [(entry.path, sum(file.size for file in entry.files())) for entry in entries]

        return self._do("dus", path, summed, [])

    def count(self, path: str) -> int:
        """The number of files below a path; 0 if there is nothing."""
        return self._do("count", path, lambda at: len(at.files()), 0)

    # ---- changing: each returns whether it succeeded

    def makedir(self, path: str) -> bool:
        """Make a folder, with its parents."""
        return self._do("makedir", path, lambda at: at.system.create_dir(at.path), False)

    def touch(self, path: str) -> bool:
        """Make an empty file. A file that exists is left as it is."""

        def touched(at: _Place) -> None:
            if at.info.type == fs.FileType.NotFound:
                at.system.open_output_stream(at.path).close()

        return self._do("touch", path, touched, False)

    def truncate(self, path: str, length: int) -> bool:
        """Keep the first `length` bytes of a file. False if it has fewer."""
        return self._do("truncate", path, lambda at: at.truncate(length), False)

    def rename(self, src: str, dest: str) -> bool:
        """Move a file or folder within its file system."""

        def moved(at: _Place) -> None:
            to = self._place(dest)
            if not to.system.equals(at.system):
                raise OSError(f"{dest} is in another file system: use download and upload")
            at.system.move(at.path, to.path)

        return self._do("rename", src, moved, False)

    def remove(self, path: str) -> bool:
        """Remove a file, or a folder with its content."""

        def removed(at: _Place) -> None:
            if at.info.type == fs.FileType.Directory:
                at.system.delete_dir(at.path)
            else:
                at.system.delete_file(at.path)

        return self._do("remove", path, removed, False)

    def download(self, remote: str, local: str) -> bool:
        """Copy a file, or a folder with its content, to local disk."""

        def copied(at: _Place) -> None:
            fs.copy_files(at.path, local, at.system, fs.LocalFileSystem())

        return self._do("download", remote, copied, False)

    def upload(self, local: str, remote: str) -> bool:
        """Copy a file, or a folder with its content, from local disk."""

        def copied(at: _Place) -> None:
            fs.copy_files(local, at.path, fs.LocalFileSystem(), at.system)

        return self._do("upload", remote, copied, False)

    def _place(self, path: str) -> _Place:
        return _Place(*filesystem_of(path)) if is_uri(path) else _Place(self._system, path)

    def _do(self, call: str, path: str, work: Callable[[_Place], Any], failed: T) -> T:
        """The result of work, True if it has none; `failed` after an error."""
        if self._system is None:
            raise PassError("BoxFileMgr: no file system is open: init is missing")

        def worked() -> Any:
            found = work(self._place(path))
            return True if found is None else found

        return _tried(f"{call} {path}", worked, failed)


class _Place:
    """A path in a file system of pyarrow."""

    def __init__(self, system: Any, path: str) -> None:
        self.system = system
        self.path = path

    @property
    def info(self) -> Any:
        return self.system.get_file_info(self.path)

    @property
    def is_file(self) -> bool:
        return bool(self.info.type == fs.FileType.File)

    def entries(self) -> Sequence[_Place]:
        """The entries of a folder, sorted by path."""
        found = self.system.get_file_info(fs.FileSelector(self.path))
        return [_Place(self.system, path) for path in sorted(info.path for info in found)]

    def files(self) -> list[Any]:
        """The infos of all files at or below this path."""
        if self.is_file:
            return [self.info]
        selector = fs.FileSelector(self.path, recursive=True, allow_not_found=True)
        found = self.system.get_file_info(selector)
        return [info for info in found if info.type == fs.FileType.File]

    def truncate(self, length: int) -> None:
        size = self.info.size if self.is_file else -1
        if not 0 <= length <= size:
            raise OSError(f"expected 0 to the {size} bytes of a file, found {length}")
        if isinstance(self.system, fs.LocalFileSystem):
            with open(self.path, "r+b") as file:
                file.truncate(length)
            return
        kept = f"{self.path}.truncated"
        with (
            self.system.open_input_stream(self.path) as source,
            self.system.open_output_stream(kept) as target,
        ):
            for begin in range(0, length, _BLOCK_BYTES):
                target.write(source.read(min(_BLOCK_BYTES, length - begin)))
        self.system.move(kept, self.path)


def _tried(what: str, work: Callable[[], T], failed: T) -> T:
    try:
        return work()
    except (OSError, pa.ArrowException) as error:
        log.warning("BoxFileMgr: %s failed: %s", what, error)
        return failed
