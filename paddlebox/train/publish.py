"""An export file that a run keeps up with its saves (`publish`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paddlebox.config import Config
from paddlebox.errors import StoreError
from paddlebox.saves.meta import BASE
from paddlebox.serving.follow import Follower, Publisher, Served
from paddlebox.serving.gate import Gate
from paddlebox.train.run_dir import append_json
from paddlebox.watch.watch import Watch

log = logging.getLogger("paddlebox")


@contextmanager
def publishing(config: Config, run_dir: Path, watch: Watch) -> Iterator[Callable[[str], None]]:
    """Gives what is to be called with the kind of each save that is done. RUN_DIR/served.jsonl
    says when which save was served, and how old the log of its pass was."""
    publish = config.publish
    if not publish.file:
        yield lambda _: None
        return
    gate = None
    if publish.gate_files:
        gate = Gate(publish.gate_files, publish.min_auc, publish.max_copc_drift)

    def told(served: Served) -> None:
        lag = watch.served(served.pass_number, served.name, served.at, served.refused)
        line = {
            "name": served.name,
            "pass": served.pass_number,
            "at": round(served.at, 3),
            "seconds": served.seconds,
            "lag_s": lag,
            "refused": served.refused,
        }
        try:
            append_json(run_dir / "served.jsonl", line)
        except StoreError as error:
            log.error("%s", error)

    follower = Follower(
        Path(config.save.out), Path(publish.file), precision=publish.precision, gate=gate
    )
    publisher = Publisher(follower, told)
    try:
        yield lambda kind: publisher.offer() if kind == BASE or publish.every == "pass" else None
    finally:
        publisher.close()
