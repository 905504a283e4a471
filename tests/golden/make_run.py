"""Makes the golden run: run.tar.xz and expected.json in this folder.

    python tests/golden/make_run.py

run.tar.xz holds a config, logs that came by the hour over a day's end, the run dir of two passes,
and beside it saves, an export file and copies. expected.json holds the digests of the run. They are
made again only if a format of docs/formats or a key of the config changes: that is a decision, and
not something to mend when a test fails.
"""

from __future__ import annotations

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
  key_space: shared
  slots: slots.yaml
  train_files: [part-*.txt]
  files_per_pass: 1
  batch_size: 8
  date: '20240101'
  files_per_day: 2
model: {type: dnn, hidden: [4], use_cvm: true}
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
  missing_hour: skip
  late_s: 0
"""
BESIDE = """\
save: {out: saves}
publish: {file: model}
checkpoint: {copy_to: copies, keep_daily: 2}
"""
_LEFT_OUT = ("LOCK", "lock.mdb", "model-lock", "model-writer")  # of the machine that made it


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


def train(folder: Path, *more: str) -> None:
    """Call tools/train.py in folder."""
    command = [sys.executable, str(ROOT / "tools/train.py"), "-c", "config.yaml"]
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


def pack(work: Path, out: Path) -> None:
    """Write a folder with a run dir in it that has ended."""
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
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "slots.yaml").write_text(SLOTS)
        (work / "config.yaml").write_text(hourly(CONFIG))
        write_logs(work)
        train(work, "--until", "2024010200")
        pack(work, Path(__file__).parent)


if __name__ == "__main__":
    main()
