"""What does a commit cost, and how soon does a run that died train again?

    python benchmarks/commit.py

Two processes train the same model on the same passes, over the same 3 M rows (D = 16, 108 bytes
with the key). They take turns; the process that waits is stopped. One has a store and commits every
pass, without compaction. The other has no store and writes nothing. MEM holds all rows in both, so
neither reads a row from the SSD tier. A sample has 26 slots of one feasign, two of them drawn from
all rows. The network is small (128-64), so that a commit has little training to overlap with.

Bytes are what the process passes to the system (wchar of /proc/self/io) between two moments without
a commit under way: segments with their filters and fences, dense state, MANIFEST and LMDB. They are
compared with the key and row of each feasign of the passes; a pass changes all of these rows. The
same is counted for the process without a store, to show that it writes nothing but its answers.

Then a base is saved, 5 % of the rows are touched, and a delta is saved. At the end a new process
resumes the run as tools/train.py does, three times. The time is measured from the start of the
process to the end of its first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import out_of_memory as common
import report
from out_of_memory import KEY_BYTES, MIB, Child, Work, say, wide_feasigns

WIDE_SLOTS = 2
EMBEDX_DIM = 16
HIDDEN = [128, 64]
TOUCHED = 0.05  # share of the rows that change before the delta
RESUMED = 3  # how often the run is resumed
# Bounds of the goals.
SPEED, BYTES, DELTA_BYTES = 0.97, 1.2, 0.06
BYTES_OF_NEVER = 0.001


def config_of(work: Work) -> dict[str, Any]:
    config = common.config_of(work)
    config["table"] = {
        "embedx_dim": EMBEDX_DIM,
        "embedx_threshold": 0.0,
        "life": {"base_threshold": 0.0, "delta_threshold": 0.0},
    }
    config["model"]["hidden"] = HIDDEN
    return config


class Trainer(common.Trainer):
    """Has a store and commits every pass if work.store is set; otherwise it writes nothing."""

    config_of = staticmethod(config_of)

    def __init__(self, work: Work) -> None:
        super().__init__(replace(work, folder=f"{work.folder}/{name(work)}"))
        dataset: Any = self.dataset
        self.end_pass = dataset.end_pass
        dataset.end_pass = self._end_pass
        self.done = 0

    def open_table(self) -> Any:
        if not self.work.store:
            return super().open_table()
        from paddlebox.store.table_set import TableSet
        from paddlebox.training import opening

        options = opening.table_options(self.config)
        folder = Path(self.work.folder) / "store"
        return TableSet(self.config.tables, replace(options, folder=folder, compaction=None))

    def _end_pass(self) -> None:
        from paddlebox.training import resume

        planned = self.planned[self.done]
        self.done += 1
        line = {"pass": self.done, "epoch": 1, "date": "", "files": list(planned.files)}
        line |= {"samples": self.work.samples, "metrics": {}}
        self.dataset.cursor = resume.cursor(self.hashes[self.done - 1], line)
        self.end_pass()

    def make_rows(self) -> dict[str, Any]:
        from paddlebox.training import resume
        from paddlebox.training.config_changes import description

        self.planned = list(self.passes)
        hashes = [""]
        for planned in self.planned:
            hashes.append(resume.follow(hashes[-1], planned.date, planned.files))
        self.hashes = hashes[1:]
        self.dataset.config_hash = self.config.fingerprint()
        self.dataset.config = description(self.config, self.slots)
        return super().make_rows()

    def io(self) -> dict[str, Any]:
        """Waits for commits. Returns the bytes passed to the system so far; and of segments."""
        self.table.wait_commit()
        lines = Path("/proc/self/io").read_text().splitlines()
        written = next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
        return {"wchar": written, "segments": self.table.counters()["ssd_bytes_written"]}

    def saves(self, rows: int) -> dict[str, Any]:
        """Saves a base, trains a pass over a share of the rows, and saves a delta."""
        from paddlebox import ops
        from paddlebox.saves import Saver
        from paddlebox.store.table import sorted_unique_keys

        self.dataset.close()  # drops the staged pass
        saver = Saver(self.table, Path(self.work.folder) / "saves")
        started = time.perf_counter()
        base = saver.base("20240101/base")
        base_s = time.perf_counter() - started
        touched = int(rows * TOUCHED)
        vocabulary = rows // WIDE_SLOTS
        chosen = np.random.default_rng(1).choice(vocabulary, touched // 2, replace=False)
        index = chosen.astype(np.uint64)
        feasigns = np.concatenate([wide_feasigns(s, index) for s in range(WIDE_SLOTS)])
        gradient = np.full((len(feasigns), 3 + EMBEDX_DIM), 0.01, np.float32)
        gradient[:, :2] = 1.0
        ops.paddle.disable_static()
        self.table.begin(self.table.stage(sorted_unique_keys(feasigns)))
        ids = ops.paddle.to_tensor(feasigns.view(np.int64))
        ops.push_box_sparse(ids, ops.paddle.to_tensor(gradient))
        self.table.end()
        # The cursor stays that of the last pass, where the run continues.
        head = self.table.head
        assert head is not None
        self.table.commit(
            pass_number=self.done,
            cursor=head.cursor,
            dense=self.runner.dense_state(),
            config_hash=head.config_hash,
            config=head.config,
        )
        started = time.perf_counter()
        delta = saver.delta("20240101/delta")
        assert delta.meta["rows"] == len(feasigns)
        return {
            "base": {"bytes": bytes_below(base.folder), "rows": base.meta["rows"], "s": base_s},
            "delta": {
                "bytes": bytes_below(delta.folder),
                "rows": delta.meta["rows"],
                "s": time.perf_counter() - started,
            },
        }

    def finish(self) -> dict[str, Any]:
        self.dataset.close()  # drops the staged pass
        return super().finish()


def name(work: Work) -> str:
    return "every" if work.store else "never"


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def serve(work: Work) -> int:
    folder = Path(work.folder) / name(work)
    folder.mkdir()
    for path in (*Path(work.folder).glob("pass-*.txt"), Path(work.folder) / "slots.yaml"):
        (folder / path.name).symlink_to(path)
    trainer = Trainer(work)
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        one: getattr(trainer, one) for one in ("make_rows", "train", "io", "saves", "finish")
    }
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(commands[command](*arguments)), flush=True)
    return 0


def take_up(path: Path) -> int:
    """Resumes the run that is next to the config and ends after its first batch. Runs in its own
    process."""
    from paddlebox.config import load_config
    from paddlebox.launch import cpu

    config = load_config(path)
    cpu.apply(config.trainer.program, config.trainer.dense_threads)
    imported = time.time()
    from paddlebox.training import pass_loop
    from paddlebox.training.run import train

    imported = time.time() - imported

    def first_batch(dataset: Any, step: Callable[[Any], Any], *_: Any, **__: Any) -> None:
        step(next(iter(dataset.batches())))
        print(json.dumps({"at": time.time(), "import_s": imported}), flush=True)
        os._exit(0)  # as after a kill

    module: Any = pass_loop
    module.run_pass = first_batch
    train(config, path.parent)
    raise AssertionError("no pass is left to train")


def resume(path: Path) -> dict[str, float]:
    started = time.time()
    done = subprocess.run(
        [sys.executable, __file__, "--take-up", str(path)],
        env={**common.CHILD_SETTINGS, **os.environ, "PYTHONPATH": str(report.ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return {"s": said["at"] - started, "import_s": said["import_s"]}


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    every = Work(
        folder=str(folder),
        wide_slots=WIDE_SLOTS,
        rows=options.rows // WIDE_SLOTS * WIDE_SLOTS,
        samples=options.samples,
        passes=options.turns * options.passes_per_turn + 1,  # the last is for the resumed run
        batch_size=512,
        seed=options.seed,
        mem_bytes=options.rows * 300,  # three times the table
        hbm_bytes=1024 * MIB,
        store=True,
    )
    say(f"writing {every.passes} passes")
    common.write_data(folder, every)
    children: list[Child] = []
    turns: dict[str, list[dict[str, Any]]] = {"every": [], "never": []}
    made: dict[str, Any] = {}
    try:
        for work in (every, replace(every, store=False)):
            children.append(Child(name(work), work, None))
        for child in children:
            made[child.name] = child.ask("make_rows")
            say(f"{child.name}: made {made[child.name]['rows']:,} rows")
        before = {child.name: child.ask("io") for child in children}
        for number in range(options.turns):
            for child in children if number % 2 else children[::-1]:
                turn = child.ask("train", options.passes_per_turn)
                turns[child.name].append(turn)
                waits = " ".join(f"{k}={v:.2f}s" for k, v in turn["wait_s"].items())
                rate = turn["samples"] / turn["seconds"]
                say(f"turn {number}, {child.name}: {rate:,.0f} samples/s, waited {waits}")
        after = {child.name: child.ask("io") for child in children}
        ended = children[1].ask("finish")
        saves = children[0].ask("saves", every.rows)
        children[0].ask("finish")
    finally:
        for child in children:
            child.close()
    resumed = [resume(folder / "every" / "config-store.yaml") for _ in range(RESUMED)]
    if merged := sum(turn["merge_bytes_written"] for turn in turns["every"]):
        raise RuntimeError(f"expected a store without compaction, merges wrote {merged:,} bytes")
    # The first turn warms up.
    ratios = [
        a["samples"] / a["seconds"] / (b["samples"] / b["seconds"])
        for a, b in zip(turns["every"][1:], turns["never"][1:], strict=True)
    ]
    rows = sum(sum(turn["hits"].values()) for turn in turns["every"])
    row_bytes = KEY_BYTES + made["every"]["row_bytes"]
    written = {
        one: {what: (after[one][what] - at) / (rows * row_bytes) for what, at in began.items()}
        for one, began in before.items()
    }
    share = saves["delta"]["bytes"] / saves["base"]["bytes"]
    figures = {
        "ratio": report.spread(ratios),
        "samples_per_s": {
            one: report.spread([turn["samples"] / turn["seconds"] for turn in done[1:]])
            for one, done in turns.items()
        },
        "written_for_a_byte_of_touched_rows": written,
        "touched_rows": rows,
        # Share of the wall time. Other load on the machine changes it less than samples/s.
        "waited_for_commits": {
            one: sum(turn["wait_s"].get("commit", 0.0) for turn in done[1:])
            / sum(turn["seconds"] for turn in done[1:])
            for one, done in turns.items()
        },
        "saves": saves,
        "resume_s": report.spread([one["s"] for one in resumed]),
        "resume_import_s": report.spread([one["import_s"] for one in resumed]),
        "turns": turns,
        "made": made,
        "ended": ended,
    }
    shown = ("ratio", "samples_per_s", "waited_for_commits", "written_for_a_byte_of_touched_rows")
    for what in (*shown, "saves"):
        print(what, figures[what])
    print("from start to first batch", figures["resume_s"], "imports", figures["resume_import_s"])
    return figures, [
        report.at_least("samples/s, of never committing", ratios, SPEED),
        report.at_most("bytes written, of touched rows", written["every"]["wchar"], BYTES),
        report.at_most("without commits, the same", written["never"]["wchar"], BYTES_OF_NEVER),
        report.at_most("a delta of 5 %, of its base", share, DELTA_BYTES),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--samples", type=int, default=150_000, help="samples per pass")
    parser.add_argument("--turns", type=int, default=9, help="number of turns; the first warms up")
    parser.add_argument("--passes-per-turn", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a trial: 400,000 rows, 3 turns")
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("build/bench"),
        help="folder for up to 4 GB, removed afterwards",
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/commit.json"))
    parser.add_argument("--work", help=argparse.SUPPRESS)  # the work of a child process, as JSON
    parser.add_argument("--take-up", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return serve(Work(**json.loads(options.work)))
    if options.take_up:
        return take_up(options.take_up)
    if options.quick:
        options.rows, options.turns, options.samples = 400_000, 3, 30_000
    if options.turns < 2 or options.passes_per_turn < 1 or options.rows < 1000:
        parser.error(
            "expected --turns of 2 or more, --passes-per-turn of 1 or more, --rows of 1,000 or more"
        )
    hidden = ("work", "take_up", "scratch")
    return report.timed(options, lambda folder: measure(options, folder), hidden=hidden)


if __name__ == "__main__":
    report.run(main)
