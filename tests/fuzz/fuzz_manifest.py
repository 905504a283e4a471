"""Any bytes as a value of the manifest: they decode, or are refused with an error of ours.

    python tests/fuzz/fuzz_manifest.py --seconds 60 [--seed N]

Bytes are mutated from sound values; half of them get a sound checksum, so that they get past it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from paddlebox.errors import StoreError
from paddlebox.store.files import seal, unseal
from paddlebox.store.life import numbered
from paddlebox.store.manifest_db import head_payload, parse_head
from paddlebox.store.record import VersionRecord, frame, unframe

_SEGMENT = {
    "id": 7,
    "sequence": 3,
    "file": "seg-000000000007.seg",
    "rows": 5,
    "min_key": 1,
    "max_key": 2**64 - 1,
    "bytes": 8192,
    "footer_crc": 2**32 - 1,
    "stamp": "0123456789abcdef",
}
_RECORD = VersionRecord(
    version=2,
    parent=1,
    segments=[_SEGMENT],
    layout={"embedx_dim": 8, "seed": 1},
    pass_number=2,
    live_rows=5,
    events=numbered([{"kind": "decay", "day": 3, "decay": 0.5}], 0),
    bytes_written={"pass": 8192},
    dense={"dense.bin": {"bytes": 3, "crc32c": 9}},
)


def decode_record(data: bytes) -> Any:
    record = VersionRecord.from_payload(data, "fuzz")
    assert VersionRecord.from_payload(record.to_payload(), "fuzz") == record
    return record


DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes, Callable[[bytes], bytes]]] = {
    "record": (decode_record, _RECORD.to_payload(), lambda data: data),
    "head": (lambda data: parse_head(data, "fuzz"), head_payload(2, {1: 5, 2: 6}), lambda d: d),
    "value": (lambda data: unseal(data, "fuzz"), seal(b"payload"), seal),
    "file": (lambda data: unframe(data, "fuzz"), frame(_RECORD.to_payload()), frame),
}
_PIECES = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"-1", b"1e999", b"\\u0000", b"\xff"]


def mutate(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                out[at:at] = chance.choice(_PIECES)
            case 2:
                del out[at : at + chance.randint(1, 20)]
            case 3:
                out[at:at] = out[at : at + chance.randint(1, 40)]
            case _:
                out[at : at + 4] = chance.randbytes(chance.randint(0, 4))
    return bytes(out)


def fuzz(seconds: float, seed: int) -> dict[str, int]:
    """Returns how many inputs each decoder took and refused."""
    chance = random.Random(seed)
    counts = {f"{name} {outcome}": 0 for name in DECODERS for outcome in ("decoded", "refused")}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, (decode, sound, seal_again) in DECODERS.items():
            data = mutate(sound, chance)
            if chance.random() < 0.5:
                data = seal_again(data)
            try:
                decode(data)
                counts[f"{name} decoded"] += 1
            except StoreError:
                counts[f"{name} refused"] += 1
            except BaseException:
                print(f"{name}: {data!r}", file=sys.stderr)
                raise
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(fuzz(given.seconds, given.seed))
