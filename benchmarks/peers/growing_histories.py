"""Instances like those of KuaiRand in the order of users and times, each with the videos that the
user clicked before it (datasets/kuairand/prepare.py --history), and how many rows of the table the
batches of such instances read."""

from __future__ import annotations

import hashlib
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

SLOTS = Path(__file__).parents[2] / "datasets/kuairand/slots_history.yaml"
CONFIG = Path(__file__).parents[2] / "configs/din_kuairand.yaml"
HISTORY = 50  # max_length of the slot
CLICKS = 0.37  # of the impressions of KuaiRand, about
HEADER = (
    "is_click,seconds,user_id,video_id,tab,hour,user_active_degree,register_days_range,"
    "video_author_id,video_video_type,video_music_id,video_tag,history"
)


def write(path: Path, users: int, per_user: int, videos: int, seed: int) -> None:
    """A CSV file of users, one after another. A user has 10 to 200 clicks before the first
    instance. Videos follow a Zipf distribution."""
    rng = np.random.default_rng(seed)
    lines = [HEADER]
    for user in range(users):
        seen = [f"v{v}" for v in rng.zipf(1.2, rng.integers(10, 201)) % videos]
        for video in rng.zipf(1.2, per_user) % videos:
            click = int(rng.random() < CLICKS)
            cells = [click, 12.5, f"u{user}", f"v{video}", rng.integers(15), rng.integers(24)]
            cells += [user % 4, user % 7, f"a{video // 3}", video % 3, f"m{video % 9973}"]
            cells += [f"t{video % 60}|t{60 + video % 7}", "|".join(seen[:HISTORY])]
            lines.append(",".join(map(str, cells)))
            if click:
                seen.insert(0, f"v{video}")
    path.write_text("\n".join(lines) + "\n")


class Pulls:
    """The rows and milliseconds of the fused pulls of a file, for one value of data.dedup_slots.

    Args:
        name: of the table.
        sequences: the slots that are read id by id; the others are pooled.
    """

    def __init__(
        self, name: str, path: Path, batch: int, dedup: Any, sequences: tuple[str, ...]
    ) -> None:
        from paddlebox.compat.upstream import UpstreamDataset
        from paddlebox.config import Format, KeySpace, TableConfig, load_slots
        from paddlebox.store.table import Table

        slots = load_slots(SLOTS)
        self._cells = sum(slots.positions(sequences))
        table = TableConfig(name=name, embedx_dim=16)
        self._table = Table(table, hbm_budget_bytes=1 << 28, mem_budget_bytes=1 << 28)
        self._dataset = UpstreamDataset(self._table)
        self._dataset.init(
            slots=slots,
            batch_size=batch,
            thread_num=1,
            data_format=Format.CSV,
            key_space=KeySpace.PER_SLOT,
            dedup_slots=dedup,
            sequences=list(sequences),
        )
        self._dataset.set_filelist([str(path)])
        self._dataset.load_into_memory()
        self._dataset.begin_pass()
        self._batches = list(self._dataset.batches())
        self.instances = sum(len(one["box_label"]) for one in self._batches)
        self.rows = sum(len(one["box_ids"]) for one in self._batches)
        self._out = np.empty((batch, self._cells * 19), np.float32)

    def milliseconds(self) -> float:
        """Of a batch, the median."""
        native, taken = self._table.first.native, []
        for one in self._batches:
            out = self._out[: len(one["box_label"])]
            started = time.perf_counter()
            native.pull_pooled(one["box_ids"], one["box_offsets"], self._cells, True, out)
            taken.append(time.perf_counter() - started)
        return 1e3 * statistics.median(taken)

    def pulled(self) -> str:
        """Digest of what all batches get."""
        native, digest = self._table.first.native, hashlib.sha256()
        for one in self._batches:
            out = self._out[: len(one["box_label"])]
            native.pull_pooled(one["box_ids"], one["box_offsets"], self._cells, True, out)
            digest.update(out.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        self._dataset.end_pass()
        self._dataset.close()
        self._table.close()
