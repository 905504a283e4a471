"""One of two ranks of test_lost_host.py, each in a network namespace of its own.

python tests/ranks/linked.py RANK FOLDER ADDRESS LATE_S

Rank 1 is LATE_S seconds late to its second exchange, and never comes to the third one. Rank 0 waits
for it, and writes what it was told to FOLDER/told, with the seconds of the second and third one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from paddlebox.errors import RankError
from paddlebox.ranks.connecting import Connector
from paddlebox.ranks.tcp import CONTROL


def _told(folder: Path, name: str) -> str:
    """What the other rank wrote to a file."""
    while not (folder / name).exists():
        time.sleep(0.02)
    return (folder / name).read_text()


def _tell(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.part").write_text(text)
    (folder / f"{name}.part").rename(folder / name)


def main() -> None:
    rank, folder, address, late_s = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    connector = Connector(rank, ["rank 0 on host a", "rank 1 on host b"], b"key", 60)
    _tell(folder, f"address{rank}", connector.listen(address))
    addresses = [_told(folder, f"address{number}") for number in range(2)]
    other = 1 - rank
    link = connector.connect(addresses, [(other, 0), (other, CONTROL)])
    link.exchange(0, {other: []})
    began = time.monotonic()
    if rank == 1:
        time.sleep(float(late_s))
    link.exchange(0, {other: []})
    waited = time.monotonic() - began
    if rank == 1:
        time.sleep(3600)
    _tell(folder, "waiting", "")
    began = time.monotonic()
    try:
        link.exchange(0, {other: []})
    except RankError as error:
        seconds = [waited, time.monotonic() - began]
        _tell(folder, "told", json.dumps({"told": str(error), "seconds": seconds}))


if __name__ == "__main__":
    main()
