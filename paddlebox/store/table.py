"""Table: the sparse parameters, in three tiers, and the commits that make them durable.

A store folder holds the manifest, the SSD tier's segments and the dense state of each version
(docs/formats/manifest.md). Without a folder everything stays in memory and nothing is committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import TableConfig
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.store.dense import read_dense, write_dense
from paddlebox.store.manifest import Manifest, VersionRecord

core = _native.core
_MIB = 1 << 20


@dataclass(frozen=True)
class StagedPass:
    """A pass whose rows are up. K = keys it was staged with."""

    stamp: int  # names the pass; batches carry it
    rows: int
    row_of_key: np.ndarray  # (K) int32, -1 where the key has no row (evaluation)
    hits: Mapping[str, int]  # rows found in "hbm", "mem", "ssd", and made "new"


class Table:
    """Opens a table, and the store in ``folder`` with it.

    Args:
        config: layout, accessor and rules.
        seed: of new rows; the same for the table's whole life.
        folder: of the store; made when absent. None: in memory only.
        hbm_budget_bytes: for the three pass tables that may live at once.
        mem_budget_bytes: rows kept near between passes, at least 1 MiB.
        threads: of staging, pull and push.
        read_only: takes passes for evaluation only, and changes no byte of the store.
        keep_versions: committed versions kept besides those still being read.

    Raises: StoreLockedError when another process writes the store; ConfigError when the store was
        written with another layout or seed; CorruptionError; ValueError for a budget too small.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        seed: int = 1,
        folder: Path | str | None = None,
        hbm_budget_bytes: int = 2048 * _MIB,
        mem_budget_bytes: int = 1024 * _MIB,
        max_segment_bytes: int = 256 * _MIB,
        threads: int = 1,
        read_only: bool = False,
        keep_versions: int = 2,
    ) -> None:
        self.config = config
        self.folder = Path(folder) if folder is not None else None
        self.read_only = read_only
        self.keep_versions = keep_versions
        # Whoever opens what this store holds must agree on these.
        self._layout: dict[str, Any] = {"seed": seed, **config.model_dump(mode="json")}
        self._manifest: Manifest | None = None
        self._abandoned = False
        self._unnamed: list[dict[str, Any]] = []  # published segments that no version names yet
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-commit")
        self._commit: Future[int] | None = None
        self._native: Any = None
        self._mutex = threading.Lock()
        try:
            segments: list[dict[str, Any]] = []
            ssd_folder = ""
            if self.folder is not None:
                segments = self._open_store()
                ssd_folder = str(self.folder / "ssd")
            self._native = core.Table(
                {
                    **config.model_dump(mode="json"),
                    "seed": seed,
                    "hbm_budget_bytes": hbm_budget_bytes,
                    "mem_budget_bytes": mem_budget_bytes,
                    "ssd_folder": ssd_folder,
                    "max_segment_bytes": max_segment_bytes,
                    "threads": threads,
                    "read_only": read_only,
                },
                segments,
            )
        except BaseException:
            self.close()
            raise

    def _open_store(self) -> list[dict[str, Any]]:
        assert self.folder is not None
        if self.read_only:
            self._manifest = Manifest.open_reader(self.folder)
        else:
            self._manifest = Manifest.open_writer(self.folder)
            self._manifest.remove_unreferenced()
        head = self._manifest.head()
        if head is None:
            if self.read_only:
                raise StoreError(f"{self.folder}: no version has been committed yet")
            return []
        differing = sorted(
            key
            for key in {*head.layout, *self._layout}
            if head.layout.get(key) != self._layout.get(key)
        )
        if differing:
            found = {key: self._layout.get(key) for key in differing}
            stored = {key: head.layout.get(key) for key in differing}
            raise ConfigError(
                f"{self.folder}: version {head.version} was written with {stored}, the config says "
                f"{found}: rows of one would be misread by the other"
            )
        return list(head.segments)

    # ---- life of a pass

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def max_pass_rows(self) -> int:
        """Most rows that a pass may have under hbm_budget_bytes."""
        return int(self._native.max_pass_rows)

    @property
    def pass_bytes_per_row(self) -> int:
        return int(self._native.pass_bytes_per_row)

    def stage(
        self,
        keys: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        train: bool = True,
        day: int = 0,
    ) -> StagedPass:
        """Brings the rows of these keys up into a pass table.

        Args:
            keys: (K) uint64, ascending, without padding: as `sorted_unique_keys` gives them.
            slots: (K) uint16, of rows that are new.
            train: absent keys get a new row; otherwise none, and nothing is changed anywhere.
            day: days since 1970-01-01, written into rows that are pushed.

        Raises: OutOfSpaceError with the bytes needed when the pass is over the HBM budget;
        PassError
            when another training pass is staged; CorruptionError.
        """
        self._check_not_abandoned()
        if slots is None:
            slots = np.empty(0, np.uint16)
        staged = self._native.stage(
            np.ascontiguousarray(keys, np.uint64),
            np.ascontiguousarray(slots, np.uint16),
            train,
            day,
        )
        hits = {tier: int(staged[tier]) for tier in ("hbm", "mem", "ssd", "new")}
        return StagedPass(staged["stamp"], staged["rows"], staged["row_of_key"], hits)

    def drop_staged(self, staged: StagedPass) -> None:
        self._native.drop_staged(staged.stamp)

    def begin(self, staged: StagedPass) -> None:
        """Opens the staged pass: operators read and write it from here on."""
        self._native.begin(staged.stamp)

    def end(self) -> None:
        """Ends the open pass. A training pass waits here until the one before it is committed, and
        is frozen until `commit` or `spill` has taken it."""
        self.wait_commit()
        self._native.end()

    def abandon(self, *, evaluation: bool = False) -> None:
        """Forgets the open pass; the store stays at its last commit, and this table takes no more
        training: open it again."""
        self._abandoned = self._abandoned or not evaluation
        if not evaluation:
            self._unnamed = []  # of the pass's earlier parts: no later commit may name them
        if self._native.training:
            self._native.abandon()

    def _check_not_abandoned(self) -> None:
        if self._abandoned:
            raise PassError(
                f"table '{self.name}': a pass was abandoned; reopen the table at its last commit"
            )

    def spill(self) -> None:
        """Writes the ended pass's rows to the SSD tier without a commit: for the parts of a pass
        that was split. The next `commit` names them; after a crash they are dropped with the
        pass."""
        self._check_not_abandoned()
        segments = self._native.write_frozen()
        self._native.publish(segments)
        self._unnamed += segments

    # ---- commit

    def commit(
        self,
        *,
        dense: Mapping[str, np.ndarray] | None = None,
        day: int = 0,
        pass_number: int = 0,
        cursor: Mapping[str, Any] | None = None,
        config_hash: str = "",
    ) -> int:
        """Makes the ended pass durable, as one version, with the dense state of the same moment.

        Returns: the version; 0 for a table without a folder.

        Raises: OutOfSpaceError, StoreError: the last version is untouched.
        """
        written = self._native.write_frozen()
        version = 0
        if self._manifest is not None and self.folder is not None:
            head = self._manifest.head()
            version = head.version + 1 if head is not None else 1
            files = write_dense(self.folder / "dense" / f"{version:012d}", dense) if dense else {}
            self._manifest.commit(
                VersionRecord(
                    version=version,
                    parent=head.version if head is not None else 0,
                    segments=[
                        *(head.segments if head is not None else []),
                        *self._unnamed,
                        *written,
                    ],
                    layout=self._layout,
                    day=day,
                    pass_number=pass_number,
                    cursor=dict(cursor or {}),
                    dense=files,
                    created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    config_hash=config_hash,
                    digest=None,
                )
            )
            self._unnamed = []
        self._native.publish(written)
        if self._manifest is not None:
            self._manifest.prune(self.keep_versions)
        return version

    def commit_in_background(self, **arguments: Any) -> Future[int]:
        """`commit`, while the next pass trains. `wait_commit` raises what went wrong."""
        self.wait_commit()
        self._commit = self._committer.submit(self.commit, **arguments)
        return self._commit

    def wait_commit(self) -> float:
        """Waits for the commit in the background; returns the seconds that took."""
        commit, started = self._commit, time.perf_counter()
        if commit is not None:
            self._commit = None
            commit.result()
        return time.perf_counter() - started

    @property
    def head(self) -> VersionRecord | None:
        """The newest committed version; None without one."""
        return self._manifest.head() if self._manifest is not None else None

    def load_dense(self) -> dict[str, np.ndarray]:
        """Dense state of the newest version; empty without one."""
        head = self.head
        if head is None or self.folder is None:
            return {}
        return read_dense(self.folder / "dense" / f"{head.version:012d}", head.dense)

    # ---- the whole table

    def digest(self) -> str:
        """Canonical digest of all (key, row) pairs: equal for equal content, however it came about.

        Raises: PassError while a pass is staged, open or being committed.
        """
        self._check_not_abandoned()
        self.wait_commit()
        return str(self._native.digest())

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows, in memory: (n) uint64 feasigns and (n, words) float32 rows
        (docs/formats/row.md)."""
        self._check_not_abandoned()
        self.wait_commit()
        feasigns, rows = self._native.read_all()
        return feasigns, rows

    def counters(self) -> dict[str, int]:
        """Sums since the table was opened; sizes of the tiers as they are now."""
        return dict(self._native.counters())

    @property
    def row_bytes(self) -> int:
        return int(self._native.row_bytes)

    def close(self) -> None:
        """Waits for the commit in the background and gives the store free. May be called twice."""
        try:
            self.wait_commit()
        finally:
            self._committer.shutdown()
            if self._native is not None:
                self._native.unregister()
                self._native = None
            if self._manifest is not None:
                self._manifest.close()
                self._manifest = None

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sorted_unique_keys(feasigns: np.ndarray) -> np.ndarray:
    """(K) uint64 keys, ascending, of feasigns (any shape, uint64 or int64 bits), padding left
    out."""
    flat = np.ascontiguousarray(feasigns).reshape(-1)
    if flat.dtype not in (np.dtype(np.int64), np.dtype(np.uint64)):
        raise ValueError(f"feasigns have dtype {flat.dtype}, expected uint64 or int64")
    return np.asarray(core.sorted_unique_keys(flat.view(np.uint64)))


__all__ = ["PassError", "StagedPass", "Table", "sorted_unique_keys"]
