"""From a workload and rates to samples/s: the model of costs of docs/advise.md, and nothing that
was measured on a training run.

A pass n is loaded (read, parse, key) and staged while pass n - 1 trains; it begins when its load
and the commit of pass n - 1 are done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paddlebox.advise.calibrate import FLOPS_A_WEIGHT, Sizes
from paddlebox.advise.rates import Rates
from paddlebox.advise.workload import Workload
from paddlebox.config import Config

_PASS_TABLES = 3  # that live at once: one commits, one trains, one is staged
_INSTANCE_BYTES, _ID_BYTES = 16, 12  # in the feeder: offsets and label; key, position, order
_ROW_KEY_BYTES = 8
_MOST_THREADS = 8  # data.threads 0


@dataclass(frozen=True)
class Prediction:
    """Seconds are of the whole run, of the training thread; together they are `seconds`."""

    samples: int
    seconds: float
    samples_per_s: float
    bottleneck: str  # dense, sparse, feeder, ssd
    parts: dict[str, float]  # dense, pull, push, step, metrics, load wait, stage wait, ...
    regimes: dict[str, float]  # the same, by what bounds
    rows: int  # at the end
    memory_bytes: dict[str, int]  # hbm, mem, feeder
    disk_bytes: int
    parts_a_pass: int  # that the largest pass is split into
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_REGIME_OF = {
    "dense": "dense",
    "step": "dense",
    "metrics": "dense",
    "pull": "sparse",
    "push": "sparse",
    "load": "feeder",
    "pack": "feeder",
    "stage": "ssd",
    "commit": "ssd",
    "crowding": "cores",
}


def predict(config: Config, work: Workload, rates: Rates, sizes: Sizes) -> Prediction:
    """What a run of the config does, were it begun now."""
    threads = min(config.data.threads or _MOST_THREADS, max(1, round(rates.cores)))
    packers = config.data.pack_threads or max(1, min(4, round(rates.cores) // 2))
    parts = dict.fromkeys(_REGIME_OF, 0.0)
    parts["step"] += rates.first_step_s
    before_s = 0.0  # what hides the load of the next pass: nothing hides the first
    seen, mem_rows = 0, config.mem.budget_bytes // (sizes.stored_row_bytes + _ROW_KEY_BYTES)
    largest = rows = 0.0
    for number, samples in enumerate(work.passes):
        ids, unique = samples * work.line_ids, work.unique(samples)
        epoch, place = divmod(number, work.passes_an_epoch)
        if place == 0 and epoch == 0:
            seen = 0
        rows_before = rows
        if epoch == 0:
            seen += samples
            rows = work.unique(seen)
        known = max(0.0, unique - (rows - rows_before))
        in_mem = min(1.0, (mem_rows + unique) / max(1.0, rows_before))
        read_bytes = known * (1 - in_mem) * (sizes.stored_row_bytes + _ROW_KEY_BYTES)
        batches = -(-samples // config.data.batch_size)
        train = {
            "dense": samples * FLOPS_A_WEIGHT * sizes.weights / rates.flops_per_s,
            "step": batches * rates.step_s + rates.end_s,
            "metrics": samples * rates.metric_s,
            "pull": ids * rates.pull_id_s,
            "push": ids * rates.push_id_s,
        }
        trained_s = sum(train.values())
        pack_s = ids * rates.pack_id_s
        train["pack"] = max(0.0, pack_s / packers - trained_s)
        text_s = samples * work.line_bytes * rates.parse_byte_s
        key_s = ids * rates.key_id_s
        load_s = max(text_s / threads, key_s) if threads > 1 else text_s + key_s
        stage_s = unique * rates.stage_row_s + read_bytes / rates.disk_read_bytes_per_s
        waited = max(0.0, load_s + stage_s - before_s)
        train["stage"] = min(waited, stage_s)
        train["load"] = waited - train["stage"]
        if number + 1 < len(work.passes):  # the last one's is behind the last pass
            train["commit"] = rates.commit_s + unique * rates.commit_row_s
        # What all threads want of the processors, while this pass trains and the next is loaded.
        # What training does not hide is done while it waits, and crowds nobody.
        hidden = min(1.0, trained_s / max(1e-9, load_s + stage_s))
        last = number + 1 == len(work.passes)
        beside = pack_s if last else pack_s + hidden * (text_s + key_s + stage_s)
        wanted = (train["dense"] + train["step"]) * rates.dense_cores + train["metrics"]
        wanted += train["pull"] + train["push"] + beside
        train["crowding"] = max(0.0, wanted / max(rates.cores, rates.dense_cores) - trained_s)
        for name, seconds in train.items():
            parts[name] += seconds
        before_s = trained_s + train["crowding"]
        largest = max(largest, unique)
    return _told(config, work, sizes, parts, rows, largest)


def _told(
    config: Config,
    work: Workload,
    sizes: Sizes,
    parts: dict[str, float],
    rows: float,
    largest: float,
) -> Prediction:
    samples, seconds = sum(work.passes), sum(parts.values())
    regimes = dict.fromkeys(dict.fromkeys(_REGIME_OF.values()), 0.0)
    for name, spent in parts.items():
        regimes[_REGIME_OF[name]] += spent
    splits = max(1, -(-int(largest) // max(1, sizes.max_pass_rows)))
    tables = min(_PASS_TABLES, len(work.passes))
    held = max(work.passes, default=0) * (_INSTANCE_BYTES + _ID_BYTES * work.line_ids)
    feeder = int(held * min(2, len(work.passes)))
    limit = config.feeder.budget_bytes
    stored = int(rows * (sizes.stored_row_bytes + _ROW_KEY_BYTES))
    notes = []
    if splits > 1:
        notes.append(
            f"hbm.budget_bytes holds {sizes.max_pass_rows} rows of a pass that has "
            f"{int(largest)}: it is split into {splits} parts"
        )
    if limit and feeder > limit:
        notes.append(f"{feeder - limit} bytes of instances go through feeder.spill_dir")
    if stored > config.mem.budget_bytes:
        notes.append("not all rows fit mem.budget_bytes: some are read from the disk")
    disk = int(stored * config.ssd.space_target) + 3 * 4 * sizes.weights
    budget = config.ssd.disk_budget_bytes
    if budget and disk > budget:
        notes.append(f"the store wants {disk} bytes, ssd.disk_budget_bytes is {budget}")
    return Prediction(
        samples=samples,
        seconds=seconds,
        samples_per_s=samples / seconds if seconds else 0.0,
        bottleneck=max(regimes, key=lambda name: regimes[name]),
        parts=parts,
        regimes=regimes,
        rows=int(rows),
        memory_bytes={
            "hbm": int(tables * min(largest, sizes.max_pass_rows) * sizes.pass_row_bytes),
            "mem": min(config.mem.budget_bytes, stored),
            "feeder": min(feeder, limit) if limit else feeder,
        },
        disk_bytes=disk,
        parts_a_pass=splits,
        notes=tuple(notes),
    )
