"""BoxWrapper: saves and some other calls of PaddleBox's `core.BoxWrapper`, under the same names.

docs/box_wrapper.md lists every name and its differences. The wrapper has no state of its own: all
state is in the table, the dataset and the donefiles.
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
from paddlebox.store.table_set import TableSet


class BoxWrapper:
    """PaddleBox's calls for a table and the dataset that feeds it.

    The path of a save is OUT/<day>/<name>, such as OUT/20240101/base or OUT/20240101/delta-3. The
    donefiles are in OUT. Every call that saves raises ValueError for a path of another form, and
    PassError while a pass is open. It can also raise StoreError and OutOfSpaceError.

    Args:
        table: the table, or group of tables, to save.
        dataset: needed by the calls for date, phase and test mode; without it they raise PassError.
        extra: files to put into each save, name -> content, such as slots.yaml and config.json.
    """

    def __init__(
        self,
        table: TableSet,
        dataset: Dataset | None = None,
        *,
        extra: Mapping[str, bytes] | None = None,
    ) -> None:
        self._table = table
        self._dataset = dataset
        self._extra = extra

    # ---- saves

    def save_base(self, batch_model_path: str, xbox_model_path: str, date: str = "") -> str:
        """Save every row to batch_model_path, and the base to xbox_model_path.

        Args:
            batch_model_path: "" saves only the base.
            date: YYYYMMDD. The unseen days of a row are counted up to this day. "": the day of the
                last pass.

        Returns: xbox_model_path as an absolute path.
        """
        day = day_of(date) if date else None
        xbox_out, xbox_name = _split(xbox_model_path)
        if batch_model_path:
            batch_out, batch_name = _split(batch_model_path)
            self._saver(batch_out).batch(batch_name)
        return str(self._saver(xbox_out).base(xbox_name, day=day).folder)

    def save_delta(self, xbox_model_path: str) -> str:
        """Save the changes since the last save in the same OUT, including deletions.

        Returns: xbox_model_path as an absolute path.
        """
        out, name = _split(xbox_model_path)
        return str(self._saver(out).delta(name).folder)

    def merge_model(self, path: str, out_path: str) -> str:
        """Merge a save and its chain into one base at out_path.

        Args:
            path: a base or a delta.

        Returns: out_path as an absolute path.
        """
        return self.merge_multi_models([path], out_path)

    def merge_multi_models(self, paths: Sequence[str], out_path: str) -> str:
        """Merge several models of one layout into one base at out_path.

        If several models have a feasign, the base gets the row of the last one.

        Returns: out_path as an absolute path.
        """
        if not paths:
            raise ValueError("merge_multi_models: expected at least one path of a save")
        out, name = _split(out_path)
        return str(merge_saves([open_save(path) for path in paths], out, name).folder)

    def load_model(self, path: str) -> int:
        """Fill an empty table from a save and its chain, as its first commit.

        Afterwards `Table.load_dense` returns the dense state of the save.

        Args:
            path: a base, a delta or a batch.

        Returns: the number of rows.

        Raises: the errors of `load_save`.
        """
        return load_save(open_save(path), self._table)

    def last_save(self, out: str) -> Save | None:
        """The save in out that the next delta will extend; None before the first base."""
        return self._saver(Path(out)).last()

    # ---- the table

    def load_ssd2mem(self, date: str) -> bool:
        """Check the date, and return whether there is a commit to continue from.

        It loads nothing: rows are read from SSD when a pass that needs them is staged.
        """
        day_of(date)
        return self._table.head is not None

    def shrink_table(self) -> bool:
        """End the day of the last pass now. Returns False if it had ended before."""
        return self._table.life.shrink_table()

    def shrink_resource(self) -> None:
        """Run the compaction that is due in the SSD tier now."""
        for table in self._table.members:
            if table.folder is None:
                raise StoreError(f"table '{table.name}' has no folder, so it has no SSD tier")
            table.compactor.compact()

    def finalize(self) -> None:
        """Close the table."""
        self._table.close()

    # ---- the dataset

    def set_date(self, date: str) -> None:
        """Set the day of the passes that are loaded from now on."""
        self._feeder("set_date").set_date(date)

    def set_test_mode(self, is_test: bool = True) -> None:
        """Set whether the passes that are loaded from now on are for evaluation."""
        self._feeder("set_test_mode").set_test_mode(is_test)

    def set_phase(self, phase: int) -> None:
        """Set the phase. 1: join, 0: update."""
        self._feeder("set_phase").set_current_phase(phase)

    def flip_phase(self) -> None:
        """Switch to the other phase."""
        self._feeder("flip_phase").flip_phase()

    def _feeder(self, call: str) -> Dataset:
        if self._dataset is None:
            raise PassError(f"{call}: the wrapper has no dataset: BoxWrapper(table, dataset)")
        return self._dataset

    def _saver(self, out: Path) -> Saver:
        return Saver(self._table, out, extra=self._extra)


def _split(path: str) -> tuple[Path, str]:
    """OUT, and the name of the save in it. Raises: ValueError for another path."""
    whole = Path(os.path.abspath(path))
    name = f"{whole.parent.name}/{whole.name}"
    donefile.check_name(name)
    return whole.parents[1], name
