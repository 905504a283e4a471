"""Makes a small run dir of this release, to be opened by all later ones:

    python tests/golden/make_run.py tests/golden/run_v2

FOLDER/run.tar.xz holds the config, its files and the run dir of two passes; FOLDER/expected.json
its digests. The number is that of the record (docs/formats/manifest.md). Those of earlier releases
are never regenerated: they hold what runs of that time left behind.

    run_v2      files that are listed
    hours_v2    logs that came by the hour, over a day's end; beside it saves, an export and copies
    ranks_v2    the files of run_v2, by two ranks
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
name: golden
seed: 7
table: {embedx_dim: 2, embedx_threshold: 0.5, admission: {min_count: 2, filter_bytes: 64KiB}}
data:
  format: multislot
  slots: slots.yaml
  train_files: [part-*.txt]
  files_per_pass: 1
  batch_size: 8
  date: '20240101'
  files_per_day: 2
model: {type: dnn, hidden: [4]}
optimizer: {type: adam, learning_rate: 0.01}
trainer: {dense_threads: 1}
"""
SLOTS = """\
slots:
  - {name: click, type: label}
  - {name: price, type: dense, dim: 1}
  - {name: user, type: sparse}
  - {name: item, type: sparse}
"""
TRAINED = 2  # passes; one more file is left for a resumed run
HOURS = ("20240101/22", "20240102/00", "20240102/01")  # 23 never came; the last one is for later
BY_THE_HOUR = """\
  path_template: logs/{date}/{hour}
  from_hour: '2024010122'
  until_hour: '2024010201'
  missing_hour: skip
  late_s: 0
"""
BESIDE = """\
save: {out: saves}
publish: {file: model}
checkpoint: {copy_to: copies, keep_daily: 2}
"""
_LEFT_OUT = ("LOCK", "lock.mdb", "log", "model-lock", "model-writer")  # of the machine that made it


def write_data(folder: Path) -> None:
    for part in range(TRAINED + 1):
        lines = [
            f"1 {int((i * 7 + part) % 3 == 0)} 1 {i / 16} 1 {100 + i % 5} 2 {200 + i % 7} {300 + i}"
            for i in range(40)
        ]
        (folder / f"part-{part}.txt").write_text("\n".join(lines) + "\n")


def write_logs(folder: Path) -> None:
    """The same files, each as an hour."""
    write_data(folder)
    for part, hour in enumerate(HOURS):
        (folder / "logs" / hour).mkdir(parents=True)
        (folder / f"part-{part}.txt").rename(folder / "logs" / hour / "part-0.txt")


def hourly(config: str) -> str:
    """CONFIG over logs that come by the hour."""
    listed = (
        "  train_files: [part-*.txt]\n", "  files_per_pass: 1\n",
        "  date: '20240101'\n  files_per_day: 2\n",
    )  # fmt: skip
    for part in listed:
        config = config.replace(part, "")
    return config.replace("  format: multislot\n", "  format: multislot\n" + BY_THE_HOUR) + BESIDE


def train(folder: Path, *more: str, ranks: int = 1) -> str:
    """tools/train.py in folder; returns its log."""
    command = [sys.executable, str(ROOT / "tools/train.py"), "-c", "config.yaml"]
    if ranks > 1:
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
        command[1:1] = [*launcher, "--log_dir", "log"]
    done = subprocess.run(
        [*command, "--run-dir", "run", *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stderr


def pack(work: Path, out: Path) -> None:
    """A folder with a run dir in it that has ended, as a golden one."""
    out.mkdir()
    summary = json.loads((work / "run/summary.json").read_text())
    expected = {name: summary[name] for name in ("version", "sparse_digest", "dense_digest")}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    with (
        lzma.open(out / "run.tar.xz", "wb") as file,
        tarfile.open(fileobj=file, mode="w") as archive,
    ):
        for path in sorted(work.rglob("*")):
            if {*path.relative_to(work).parts} & {*_LEFT_OUT}:
                continue
            info = archive.gettarinfo(str(path), str(path.relative_to(work)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            with path.open("rb") if path.is_file() else contextlib.nullcontext() as content:
                archive.addfile(info, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "slots.yaml").write_text(SLOTS)
        kind = out.name.partition("_")[0]
        (work / "config.yaml").write_text(hourly(CONFIG) if kind == "hours" else CONFIG)
        if kind == "hours":
            write_logs(work)
            train(work, "--until", "2024010200")
        else:
            write_data(work)
            listed = ["-o", "data.train_files=[part-0.txt,part-1.txt]"]
            of_ranks = ["data.files_per_pass=2", "data.batch_size=4"]
            if kind == "ranks":
                train(work, *listed, *of_ranks, ranks=2)
            else:
                train(work, *listed)
        pack(work, out)


if __name__ == "__main__":
    main()
