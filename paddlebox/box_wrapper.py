"""BoxWrapper: saves and a few calls of PaddleBox's `core.BoxWrapper`, by the names they have there.

docs/box_wrapper.md says of each what it does here. The wrapper has no state of its own: a table, a
dataset, and the donefiles tell where things stand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddlebox.config.dates import day_of
from paddlebox.data.dataset import Dataset
from paddlebox.errors import PassError, StoreError
from paddlebox.saves import donefile
from paddlebox.saves.load import load_save
from paddlebox.saves.merge import merge_saves
from paddlebox.saves.reader import Save, open_save
from paddlebox.saves.saver import Saver
from paddlebox.store.group import Tables


class BoxWrapper:
    """PaddleBox's names over a table and the dataset that feeds it.

    Args:
        table: whose rows are saved; or a group of several tables.
        dataset: for `set_date`, the phases and test mode; None: those raise PassError.
        extra: files that go into each save, name -> content: slots.yaml, config.json.

    Paths of saves are OUT/<day>/<name>, as 20240101/base and 20240101/delta-3; OUT, two folders up,
    gets the donefiles. Shared errors: ValueError for other paths; StoreError, OutOfSpaceError;
    PassError while a pass is open.
    """

    def __init__(
        self,
        table: Tables,
        dataset: Dataset | None = None,
        *,
        extra: Mapping[str, bytes] | None = None,
    ) -> None:
        self._table = table
        self._dataset = dataset
        self._extra = extra

    # ---- saves

    def save_base(self, batch_model_path: str, xbox_model_path: str, date: str = "") -> str:
        """Saves every row to batch_model_path ("": not), and the base to xbox_model_path.

        Args:
            date: YYYYMMDD of the save, up to which unseen days count; "": that of the last pass.

        Returns: xbox_model_path, absolute.
        """
        day = day_of(date) if date else None
        xbox_out, xbox_name = _split(xbox_model_path)
        if batch_model_path:
            batch_out, batch_name = _split(batch_model_path)
            self._saver(batch_out).batch(batch_name)
        return str(self._saver(xbox_out).base(xbox_name, day=day).folder)

    def save_delta(self, xbox_model_path: str) -> str:
        """Saves what changed since the last save below the same OUT, deletions too.

        Returns: xbox_model_path, absolute.
        """
        out, name = _split(xbox_model_path)
        return str(self._saver(out).delta(name).folder)

    def merge_model(self, path: str, out_path: str) -> str:
        """Writes the model that path, a base or a delta, ends as one base at out_path."""
        return self.merge_multi_models([path], out_path)

    def merge_multi_models(self, paths: Sequence[str], out_path: str) -> str:
        """Writes several models of one layout as one base at out_path: of a feasign that several
        have, the last one's row.

        Returns: out_path, absolute.
        """
        if not paths:
            raise ValueError("merge_multi_models: expected at least one path of a save")
        out, name = _split(out_path)
        return str(merge_saves([open_save(path) for path in paths], out, name).folder)

    def load_model(self, path: str) -> int:
        """Fills the table, which must be empty, with the model that path, a base, a delta or a
        batch, ends, as its first commit. The dense state is `Table.load_dense` from then on.

        Returns: how many rows. Raises: as `load_save`.
        """
        return load_save(open_save(path), self._table)

    def last_save(self, out: str) -> Save | None:
        """The save below out that the next delta is made upon."""
        return self._saver(Path(out)).last()

    # ---- the table's life

    def load_ssd2mem(self, date: str) -> bool:
        """Checks that date is one, and that a version can be gone on from: rows come up from SSD
        when a pass that needs them is staged."""
        day_of(date)
        return self._table.head is not None

    def shrink_table(self) -> bool:
        """Ends the day of the last pass now. False where it had ended."""
        return self._table.shrink_table()

    def shrink_resource(self) -> None:
        """Merges what is due in the SSD tier, now."""
        for table in self._table.members:
            if table.folder is None:
                raise StoreError(f"table '{table.name}' has no folder: nothing can be merged")
            table.compact()

    def finalize(self) -> None:
        """Closes the table."""
        self._table.close()

    # ---- the dataset

    def set_date(self, date: str) -> None:
        """The day of the passes that are loaded from now on."""
        self._feeder("set_date").set_date(date)

    def set_test_mode(self, is_test: bool = True) -> None:
        """The passes that are loaded from now on are for evaluation."""
        self._feeder("set_test_mode").set_test_mode(is_test)

    def set_phase(self, phase: int) -> None:
        """1: join, 0: update."""
        self._feeder("set_phase").set_current_phase(phase)

    def flip_phase(self) -> None:
        """To the other phase."""
        self._feeder("flip_phase").flip_phase()

    def _feeder(self, call: str) -> Dataset:
        if self._dataset is None:
            raise PassError(f"{call}: the wrapper has no dataset: BoxWrapper(table, dataset)")
        return self._dataset

    def _saver(self, out: Path) -> Saver:
        return Saver(self._table, out, extra=self._extra)


def _split(path: str) -> tuple[Path, str]:
    """OUT and the save's name in it."""
    whole = Path(os.path.abspath(path))
    name = f"{whole.parent.name}/{whole.name}"
    donefile.check_name(name)
    return whole.parents[1], name
