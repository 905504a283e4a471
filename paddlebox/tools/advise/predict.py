"""Predicts samples/s from a workload and rates, with the cost model of docs/advise.md. It uses no
measurements of a training run.

Pass n is loaded (read, parse, key) and staged while pass n - 1 trains. It begins when it is loaded,
and ends when pass n - 1 is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paddlebox.config import Config
from paddlebox.tools.advise.calibrate import FLOPS_A_WEIGHT, Sizes
from paddlebox.tools.advise.rates import Rates
from paddlebox.tools.advise.workload import Workload

_PASS_TABLES = 3  # that exist at the same time: one is committed, one trains, one is staged
_INSTANCE_BYTES, _ID_BYTES = 16, 12  # in the feeder: offsets and label; key, position, order
_ROW_KEY_BYTES = 8
_MOST_THREADS, _MOST_PACKERS = 8, 4  # with data.threads 0


@dataclass(frozen=True)
class Prediction:
    """The prediction for a whole run. Times are seconds of the training thread."""

    samples: int
    seconds: float  # the sum of `parts`
    samples_per_s: float
    bottleneck: str  # the regime with the most seconds: dense, sparse, feeder, ssd or cores
    parts: dict[str, float]  # dense, pull, push, step, metrics, load wait, stage wait, ...
    regimes: dict[str, float]  # `parts`, summed by bottleneck
    rows: int  # at the end
    memory_bytes: dict[str, int]  # hbm, mem, feeder
    disk_bytes: int
    parts_a_pass: int  # number of parts of the largest pass
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
    """Predict a run of the config."""
    parts = dict.fromkeys(_REGIME_OF, 0.0)
    parts["step"] += rates.first_step_s
    hides_s = 0.0  # time of the pass before, in which this one loads; the first pass has none
    seen, largest, rows = 0, 0.0, 0.0
    synced_s = written_s = 0.0  # of the commit of the pass before, which runs during this pass
    for number, samples in enumerate(work.passes):
        rows_before = rows
        if number < work.passes_an_epoch:  # later epochs have no new ids
            seen += samples
            rows = work.unique(seen)
        unique = work.unique(samples)
        last = number + 1 == len(work.passes)
        spent = _training(config, work, rates, sizes, samples)
        trained_s = sum(spent.values())
        load = _Load.of(config, work, rates, samples)
        stage_s = unique * rates.stage_row_s
        known = max(0.0, unique - (rows - rows_before))
        stage_s += _read_s(config, rates, sizes, known, unique, rows_before)
        waited_s = max(0.0, load.seconds + stage_s - hides_s)
        spent["stage"] = min(waited_s, stage_s)
        spent["load"] = waited_s - spent["stage"]
        spent["pack"] = max(0.0, load.pack_s / load.packers - trained_s)
        spent["commit"] = max(0.0, synced_s + written_s - trained_s)
        # Loading for which training waits does not compete with it for cores.
        hidden = 0.0 if last else min(1.0, trained_s / max(1e-9, load.seconds + stage_s))
        beside_s = load.pack_s + hidden * (load.text_s + load.key_s + stage_s)
        beside_s += min(written_s, trained_s)
        spent["crowding"] = _crowding_s(rates, spent, trained_s, beside_s)
        synced_s, written_s = rates.commit_s, unique * rates.commit_row_s
        for name, seconds in spent.items():
            parts[name] += seconds
        hides_s = trained_s + spent["crowding"]
        largest = max(largest, unique)
    return _told(config, work, sizes, parts, rows, largest)


def _training(
    config: Config, work: Workload, rates: Rates, sizes: Sizes, samples: int
) -> dict[str, float]:
    """Seconds of the training thread in a pass, without waits."""
    ids, batches = samples * work.line_ids, -(-samples // config.data.batch_size)
    return {
        "dense": samples * FLOPS_A_WEIGHT * sizes.weights / rates.flops_per_s,
        "step": batches * rates.step_s + rates.end_s,
        "metrics": samples * rates.metric_s,
        "pull": ids * rates.pull_id_s,
        "push": ids * rates.push_id_s,
    }


@dataclass(frozen=True)
class _Load:
    """The work of the feeder for a pass."""

    text_s: float  # read and parse, summed over threads
    key_s: float  # of the one thread
    pack_s: float  # summed over threads
    seconds: float  # from the first byte to the last key
    packers: int  # number of packing threads

    @staticmethod
    def of(config: Config, work: Workload, rates: Rates, samples: int) -> _Load:
        cores = max(1, round(rates.cores))
        threads = min(config.data.threads or _MOST_THREADS, cores)
        ids = samples * work.line_ids
        text_s, key_s = samples * work.line_bytes * rates.parse_byte_s, ids * rates.key_id_s
        return _Load(
            text_s=text_s,
            key_s=key_s,
            pack_s=ids * rates.pack_id_s,
            seconds=max(text_s / threads, key_s) if threads > 1 else text_s + key_s,
            packers=1 if config.data.threads == 1 else max(1, min(_MOST_PACKERS, cores // 2)),
        )


def _read_s(
    config: Config, rates: Rates, sizes: Sizes, known: float, unique: float, rows: float
) -> float:
    """Seconds to read the known rows that are neither in MEM nor in the pass before, which is
    assumed to be as large as this one.

    Args:
        known: rows of the pass that are in the store.
        unique: rows of the pass.
        rows: rows of the store before the pass.
    """
    row_bytes = sizes.stored_row_bytes + _ROW_KEY_BYTES
    held = config.mem.budget_bytes // row_bytes + unique
    absent = 1 - min(1.0, held / max(1.0, rows))
    return known * absent * row_bytes / rates.disk_read_bytes_per_s


def _crowding_s(
    rates: Rates, spent: Mapping[str, float], trained_s: float, beside_s: float
) -> float:
    """Extra seconds of a pass because the threads need more processors than there are."""
    wanted = (spent["dense"] + spent["step"]) * rates.dense_cores
    wanted += spent["metrics"] + spent["pull"] + spent["push"] + beside_s
    return max(0.0, wanted / max(rates.cores, rates.dense_cores) - trained_s)


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
            f"hbm.budget_bytes holds {sizes.max_pass_rows} rows, and a pass has {int(largest)}: it "
            f"is split into {splits} parts"
        )
    if limit and feeder > limit:
        notes.append(f"{feeder - limit} bytes of instances are written to feeder.spill_dir")
    if stored > config.mem.budget_bytes:
        notes.append("not all rows fit mem.budget_bytes: some are read from the disk")
    disk = int(stored * config.ssd.space_target) + 3 * 4 * sizes.weights
    budget = config.ssd.disk_budget_bytes
    if budget and disk > budget:
        notes.append(f"the store needs {disk} bytes, ssd.disk_budget_bytes is {budget}")
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
