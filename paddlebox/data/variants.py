"""Datasets by the names that PaddleBox and Paddle give them, and one that streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paddlebox.data.batches import Feed
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.surface import JOIN
from paddlebox.errors import PassError
from paddlebox.store.group import Tables


class BoxPSDataset(InMemoryDataset):
    """PaddleBox's name for it; nothing is different."""


class PadBoxSlotDataset(BoxPSDataset):
    """Page views come and go with the phase: no call of preprocess_instance or postprocess_instance
    is needed."""

    def disable_shuffle(self) -> None:
        """The passes loaded from now on keep the order of the files."""
        self._shuffle_next = False

    def disable_polling(self) -> None:
        """Accepted, and nothing: one rank reads all files, several always share them out."""

    def batches(self) -> Iterator[Feed]:
        current = self._current
        if self._enable_pv_merge and current is not None and self._phase not in current.trained:
            if self._phase == JOIN and current.views is None:
                self.preprocess_instance()
            elif self._phase != JOIN and current.views is not None:
                self.postprocess_instance()
        return super().batches()


class QueueDataset(InMemoryDataset):
    """Streams: there is nothing to load first, `train_from_dataset` reads, trains and commits.

    Which rows the stream will need is not known before it has been read, and rows are staged before
    they train. So it goes in windows, each of which is a pass of its own: window_files of the file
    list, one unless set_window_files says otherwise. While one window trains, the next is read,
    parsed and staged. Each window that trains commits a version when it ends, and one that fails
    leaves the store at the window before; memory holds two windows.

        dataset.set_filelist(files)
        paddlebox.train_from_dataset(exe, program, dataset, loss=loss)   # once a file list
    """

    def __init__(self, table: Tables, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        self._window_files = 1
        self._waiting: list[str] | None = None  # the file list, until it has been streamed

    def set_window_files(self, files: int) -> None:
        """Files that make a window: more of them share rows, fewer come sooner."""
        if files < 1:
            raise ValueError(f"set_window_files: expected at least 1, found {files}")
        self._window_files = files

    def set_filelist(self, filelist: Any) -> None:
        super().set_filelist(filelist)
        self._waiting = list(self._filelist)

    def batches(self) -> Iterator[Feed]:
        """The batches of the file list, in order, each once.

        Raises: PassError without a file list, or when it has been streamed already.
        """
        files, self._waiting = self._waiting, None
        if not files:
            raise PassError("there is nothing to stream: set_filelist is missing")
        step = self._window_files
        windows = [files[at : at + step] for at in range(0, len(files), step)]
        return self._stream(windows)

    def _stream(self, windows: list[list[str]]) -> Iterator[Feed]:
        self._preload_files(windows[0])
        for following in [*windows[1:], None]:
            super().begin_pass()
            if following is not None:
                self._preload_files(following)
            yield from super().batches()
            super().end_pass()

    def _preload_files(self, files: list[str]) -> None:
        self._filelist = files
        super().preload_into_memory()

    def _no_pass(self, call: str) -> PassError:
        return PassError(
            f"{call}: a QueueDataset streams and has no passes to load: train_from_dataset is all "
            "it takes; InMemoryDataset has passes"
        )

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        del thread_num
        raise self._no_pass("preload_into_memory")

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        del is_shuffle
        raise self._no_pass("load_into_memory")

    def preload_into_disk(self, path: str = "", file_num: int = 1) -> None:
        del path, file_num
        raise self._no_pass("preload_into_disk")

    def begin_pass(self) -> None:
        raise self._no_pass("begin_pass")

    def end_pass(self, need_save_delta: bool = False, *, commit: bool = True) -> None:
        del need_save_delta, commit
        raise self._no_pass("end_pass")

    def abandon_pass(self, error: BaseException | None = None) -> None:
        """Forgets the open window, where one is."""
        if self._current is not None:
            super().abandon_pass(error)
