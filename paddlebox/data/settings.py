"""What a dataset is told before it loads: the slots, the files, the day, the threads.

The settings that PaddleBox's datasets have beyond these are in surface.py. Unless said otherwise
one is for the passes that are loaded from then on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlebox.config import Format, KeySpace, OversizePass, Slots, load_slots
from paddlebox.config.dates import day_of
from paddlebox.data.cache import open_cache
from paddlebox.data.options import LoadOptions
from paddlebox.data.pipe import TIMEOUT_S
from paddlebox.data.pipeline import LoadThreads, PackThreads, Threads
from paddlebox.data.sources import RETRIES
from paddlebox.data.surface import Surface
from paddlebox.store.group import Tables

_MAX_THREADS = 8  # where thread_num leaves the number open
_MAX_PACK_THREADS = 4


def _cores(most: int) -> int:
    return max(1, min(most, len(os.sched_getaffinity(0))))


class Settings(Surface):
    """Settings of `InMemoryDataset`, of Paddle's names and of this feeder."""

    def __init__(self, table: Tables, seed: int) -> None:
        super().__init__(seed)
        self._table = table
        self._table_names = tuple(member.name for member in table.members)
        self._use_var: Sequence[Any] | None = None
        self._filelist: list[str] = []
        self._day = 0
        self._drop_last = False
        self._test_mode = False
        self._passes_loaded = 0
        self._tuned = False
        self._load_threads: Threads = Threads(1, 1)
        self._pack_threads = PackThreads(1, 1)

    def resume_after(self, passes: int) -> None:
        """Says that so many passes were loaded before, in a run that is taken up again: the
        shuffles of the next ones are those that they would have been."""
        self._passes_loaded = passes

    def init(
        self,
        *,
        slots: Slots | Path | str,
        data_format: Format | str = Format.MULTISLOT,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[Any] | None = None,
        key_space: KeySpace | str = KeySpace.SHARED,
        max_bad_line_ratio: float = 0.001,
        max_line_bytes: int = 1 << 20,
        oversize_pass: OversizePass | str = OversizePass.SPLIT,
        retries: int = RETRIES,
        drop_last: bool = False,
        pipe_command: str = "",
        pipe_timeout_s: float = TIMEOUT_S,
        parser: str = "",
        allow_commands: bool = False,
        dedup_slots: str | Sequence[str] = "off",
        sequences: Sequence[str] = (),
        budget_bytes: int = 0,
        spill_dir: Path | str = "",
        cache_bytes: int = 0,
        cache_dir: Path | str = "",
        pack_threads: int = 0,
    ) -> None:
        """Names as `paddle.distributed.InMemoryDataset.init`, and what this feeder needs beyond.

        Args:
            slots: the columns, or the path of a slots.yaml. The rest as `data` and `feeder` in
                docs/config.md.
            thread_num, pack_threads: 0: tuned while it runs by what waits (data/pipeline.py), up to
                the cores that there are. No result depends on either.
            allow_commands: as `security` there: without it no pipe_command and no parser.
            sequences: sparse slots with a max_length whose ids the packed inputs hold one by one:
                see data/positions.py.
        """
        slots = slots if isinstance(slots, Slots) else load_slots(slots)
        self._options = LoadOptions(
            format=Format(data_format),
            slots=slots,
            tables=self._table.slot_tables(slots),
            batch_size=batch_size,
            threads=thread_num or _cores(_MAX_THREADS),
            key_space=KeySpace(key_space),
            max_bad_line_ratio=max_bad_line_ratio,
            max_line_bytes=max_line_bytes,
            oversize_pass=OversizePass(oversize_pass),
            retries=retries,
            dedup_slots=dedup_slots,
            sequences=tuple(sequences),
            budget_bytes=budget_bytes,
            spill_dir=Path(spill_dir) if spill_dir else None,
            cache=open_cache(cache_dir, cache_bytes),
        )
        self._options.slots.check_format(self._options.format)
        self._options.check_sequences()
        self._options.dedup()
        self._options.schema()  # a schema that makes no sense is said here and not in a thread
        self._drop_last = drop_last
        self._set_threads(thread_num)
        most = _cores(2 * _MAX_PACK_THREADS) // 2
        self._pack_threads = PackThreads(pack_threads or 1, pack_threads or max(1, most))
        self._allow_commands = allow_commands
        self.set_pipe_timeout(pipe_timeout_s)
        self.set_pipe_command(pipe_command)
        self.set_so_parser_name(parser)
        self.set_use_var(use_var)

    def set_use_var(self, variables: Sequence[Any] | None) -> None:
        """Variables to feed, named like slots or packed inputs; None: all packed inputs. In dygraph
        a `paddle.static.InputSpec` says the name, shape and dtype.

        Raises: ValueError for what is no variable, such as a name.
        """
        for var in (variables,) if isinstance(variables, str) else variables or ():
            if not all(hasattr(var, part) for part in ("name", "shape", "dtype")):
                raise ValueError(
                    f"set_use_var: expected variables, found {var!r} ({type(var).__name__}): give "
                    "those of your static program, as paddle.static.data returns them, or in "
                    'dygraph paddle.static.InputSpec([None, 1], "int64", NAME)'
                )
        self._use_var = list(variables) if variables is not None else None

    def set_batch_size(self, batch_size: int) -> None:
        self._options = replace(self._initialised(), batch_size=batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Threads that read, parse and key; 0: tuned while it runs by what waits."""
        threads = thread_num or _cores(_MAX_THREADS)
        self._options = replace(self._initialised(), threads=threads)
        self._set_threads(thread_num)

    def _set_threads(self, thread_num: int) -> None:
        self._tuned = thread_num == 0
        most = thread_num or _cores(_MAX_THREADS)
        self._load_threads = LoadThreads(most) if self._tuned else Threads(most, most)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        self._filelist = list(filelist)

    def set_date(self, date: str) -> None:
        """The day of the passes that are loaded from now on, as YYYYMMDD.

        Where it is a later one, the day before ends when the first of them begins, with
        ``table.life.auto``: the pass that trains meanwhile belongs to it still.
        """
        try:
            self._day = day_of(date)
        except ValueError as error:
            raise ValueError(f"set_date: {error}") from None

    def set_test_mode(self, test: bool) -> None:
        """Passes loaded from now on evaluate: absent feasigns read as zeros, nothing changes."""
        self._test_mode = test

    @property
    def _slots(self) -> Slots:
        """The columns of the input."""
        return self._initialised().slots

    @property
    def slot_names(self) -> list[str]:
        return [slot.name for slot in self._initialised().slots.slots]

    @property
    def sparse_names(self) -> list[str]:
        return [slot.name for slot in self._initialised().slots.sparse]

    @property
    def tasks(self) -> tuple[str, ...]:
        """(T) names of the labels."""
        return self._initialised().slots.tasks

    @property
    def label_variable(self) -> str | None:
        """The variable that is fed the label; None when use_var has none."""
        if self._use_var is None:
            return "box_label"
        fed = [var.name for var in self._use_var]
        candidates = ("box_label", self._initialised().slots.label.name)
        return next((name for name in candidates if name in fed), None)
