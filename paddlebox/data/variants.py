"""Datasets by the names that PaddleBox and Paddle give them, and one that streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from paddlebox.data.batches import Feed
from paddlebox.data.dataset import Dataset, InMemoryDataset
from paddlebox.data.options import JOIN
from paddlebox.errors import PassError
from paddlebox.store.table_set import TableSet


class BoxPSDataset(InMemoryDataset):
    """PaddleBox's name for it; nothing is different."""


class PadBoxSlotDataset(BoxPSDataset):
    """Page views come and go with the phase: no call of preprocess_instance or postprocess_instance
    is needed."""

    def disable_shuffle(self) -> None:
        """The passes loaded from now on keep the order of the files."""
        self._options.shuffle = False

    def disable_polling(self) -> None:
        """Accepted, and nothing: one rank reads all files, several always share them out."""

    def batches(self) -> Iterator[Feed]:
        current, options = self._stager.current, self._options
        if options.enable_pv_merge and current is not None and options.phase not in current.trained:
            if options.phase == JOIN and current.views is None:
                self.preprocess_instance()
            elif options.phase != JOIN and current.views is not None:
                self.postprocess_instance()
        return super().batches()


class QueueDataset(Dataset):
    """Streams: there is nothing to load first, `train_from_dataset` reads, trains and commits.

    Which rows the stream will need is not known before it has been read, and rows are staged before
    they train. So it goes in windows, each of which is a pass of its own: window_files of the file
    list, one unless set_window_files says otherwise. While one window trains, the next is read,
    parsed and staged. Each window that trains commits a version when it ends, and one that fails
    leaves the store at the window before; memory holds two windows.

        dataset.set_filelist(files)
        paddlebox.train_from_dataset(exe, program, dataset, loss=loss)   # once a file list
    """

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        self._window_files = 1

    def set_window_files(self, files: int) -> None:
        """Files that make a window: more of them share rows, fewer come sooner."""
        if files < 1:
            raise ValueError(f"set_window_files: expected at least 1, found {files}")
        self._window_files = files

    def batches(self) -> Iterator[Feed]:
        """The batches of the file list, in order, each once.

        Raises: PassError without a file list, or when it has been streamed already.
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
        """Forgets the open window, where one is."""
        if self._stager.current is not None:
            super().abandon_pass(error)


def _refusal(call: str) -> Callable[..., NoReturn]:
    """A method that says that a stream has no passes."""

    def refuse(self: QueueDataset, *arguments: Any, **named: Any) -> NoReturn:
        del self, arguments, named
        raise PassError(
            f"{call}: a QueueDataset streams and has no passes to load: train_from_dataset is all "
            "it takes; InMemoryDataset has passes"
        )

    refuse.__name__ = call
    return refuse


# Calls of InMemoryDataset that a program written for one may make of a QueueDataset.
for _call in (
    *("preload_into_memory", "load_into_memory", "preload_into_disk", "load_into_disk"),
    *("begin_pass", "end_pass"),
):
    setattr(QueueDataset, _call, _refusal(_call))
