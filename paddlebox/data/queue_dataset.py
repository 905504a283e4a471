"""QueueDataset: a dataset that streams files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from paddlebox.data.batches import Feed
from paddlebox.data.dataset import Dataset
from paddlebox.errors import PassError
from paddlebox.store.table_set import TableSet


class QueueDataset(Dataset):
    """Streams a list of files. Nothing is loaded first: `train_from_dataset` reads, trains and
    commits.

    Rows must be staged before they train, and the rows that files need are not known before the
    files are read. So the stream is divided into windows, and each window is a pass. A window has
    one file, or as many as `set_window_files` sets. While one window trains, the next is read,
    parsed and staged, so that memory holds two windows. Each window commits a version when it ends.
    If a window fails, the store stays at the window before.

        dataset.set_filelist(files)
        paddlebox.train_from_dataset(exe, program, dataset, loss=loss)   # once per file list
    """

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        self._window_files = 1

    def set_window_files(self, files: int) -> None:
        """Set the number of files in a window. In larger windows more files share staged rows;
        smaller windows begin to train sooner."""
        if files < 1:
            raise ValueError(f"set_window_files: expected at least 1, found {files}")
        self._window_files = files

    def batches(self) -> Iterator[Feed]:
        """The batches of the file list, in order. Each is returned once.

        Raises: PassError without a file list, or if it was streamed already.
        """
        files, self._options.filelist = self._options.filelist, []
        if not files:
            raise PassError("there is nothing to stream: set_filelist is missing")
        step = self._window_files
        windows = [files[at : at + step] for at in range(0, len(files), step)]
        return self._stream(windows)

    def _stream(self, windows: list[list[str]]) -> Iterator[Feed]:
        self._preload(windows[0])
        for following in [*windows[1:], None]:
            self.stats = self._feeder.begin()
            if following is not None:
                self._preload(following)
            yield from self._feeder.batches(self.metric_columns)
            self._end()

    def _preload(self, files: list[str]) -> None:
        self._loader.preload(self._options.initialised(), files, self.tracer)

    def abandon_pass(self, error: BaseException | None = None) -> None:
        """Discard the open window, if there is one."""
        if self._stager.current is not None:
            super().abandon_pass(error)


def _refusal(call: str) -> Callable[..., NoReturn]:
    """A method that raises a PassError, because a stream has no passes."""

    def refuse(self: QueueDataset, *arguments: Any, **named: Any) -> NoReturn:
        del self, arguments, named
        raise PassError(
            f"{call}: a QueueDataset streams and has no passes to load: call only "
            "train_from_dataset, or use an InMemoryDataset"
        )

    refuse.__name__ = call
    return refuse


# Calls that a program written for InMemoryDataset may make.
for _call in (
    *("preload_into_memory", "load_into_memory", "preload_into_disk", "load_into_disk"),
    *("begin_pass", "end_pass"),
):
    setattr(QueueDataset, _call, _refusal(_call))
