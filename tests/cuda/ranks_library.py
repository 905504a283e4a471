"""What ranks exchange, in the C interface of ops/cuda/hbm.h, and as the host has it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from tests.cuda.hbm_library import Device, Push, Table, pointer

WIRES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3}


def record_bytes(device: Device, wire: int) -> int:
    return int(device.library.get("record_bytes", device.handle, c_int32(wire)))


def gather(table: Table, wire: int, ids: np.ndarray) -> np.ndarray:
    """(m, bytes of a record)."""
    asked = table.device.put(ids.astype(np.int32))
    shape = (len(ids), record_bytes(table.device, wire))
    out = table.device.put(np.full(shape, 0xA5, np.uint8))
    table.library.call(
        *("gather", table.handle, c_int32(wire), asked.pointer, c_uint64(len(ids))),
        *(out.pointer, None),
    )
    return out.get()


def unpack(device: Device, wire: int, records: np.ndarray) -> np.ndarray:
    given = device.put(records)
    out = device.put(np.full((len(records), 3 + device.config.embedx_dim), 7, np.float32))
    device.library.call(
        *("unpack", device.handle, c_int32(wire), given.pointer, c_uint64(len(records))),
        *(out.pointer, None),
    )
    return out.get()


def push_records(table: Table, plan: np.ndarray, wire: int, records: np.ndarray, of: Push) -> None:
    on_device, given = table.device.put(plan), table.device.put(records)
    shape = (len(records), 3 + table.device.config.embedx_dim)
    room = table.device.put(np.zeros(shape, np.float32))
    gradient = of.gradient(c_void_p(), c_void_p())
    table.library.call(
        *("push_records", table.handle, on_device.pointer, c_uint64(len(plan)), c_int32(wire)),
        *(given.pointer, c_uint64(len(records)), room.pointer, byref(gradient), None),
    )
    table.library.call("synchronize", None)


class Batch(Table):
    """A table of a batch's rows, without any."""

    def __init__(self, device: Device) -> None:
        self.device, self.library, self.keys = device, device.library, np.empty(0, np.uint64)
        self.handle = c_void_p()
        self.library.call("begin_batch", device.handle, byref(self.handle))

    def renew(self, keys: np.ndarray, stamp: int, *, read_only: bool = False) -> None:
        self.keys = keys.astype(np.uint64)
        self.library.call(
            *("renew", self.handle, pointer(self.keys), c_uint64(len(keys)), c_int32(stamp)),
            c_int32(read_only),
        )

    def fill(
        self, wire: int, records: np.ndarray, at: np.ndarray | None = None, first: int = 0
    ) -> None:
        given = self.device.put(records)
        places = None if at is None else self.device.put(at.astype(np.int32))
        self.library.call(
            *("fill", self.handle, c_int32(wire), None if places is None else places.pointer),
            *(c_uint64(first), given.pointer, c_uint64(len(records)), None),
        )
        self.library.call("synchronize", None)

    def merge(self, plan: np.ndarray, of: Push) -> np.ndarray:
        """Returns the sums so far."""
        on_device = self.device.put(plan)
        grad, counts = self.device.put(of.grad), self.device.put(of.show_click)
        gradient = of.gradient(grad.pointer, counts.pointer)
        self.library.call(
            *("merge", self.handle, on_device.pointer, c_uint64(len(plan)), byref(gradient)), None
        )
        sums = np.empty((len(self.keys), 3 + self.device.config.embedx_dim), np.float32)
        self.library.call("sums", self.handle, pointer(sums), None)
        return sums


class Staging:
    """The same between arrays of the host."""

    def __init__(self, device: Device) -> None:
        self.device, self.library, self.handle = device, device.library, c_void_p()
        self.library.call("open_staging", device.handle, byref(self.handle))

    def gather(self, table: Table, wire: int, ids: np.ndarray) -> np.ndarray:
        ids = ids.astype(np.int32)
        out = np.full((len(ids), record_bytes(self.device, wire)), 0xA5, np.uint8)
        self.library.call(
            *("stage_gather", self.handle, table.handle, c_int32(wire)),
            *(pointer(ids), c_uint64(len(ids)), pointer(out)),
        )
        return out

    def have_embedx(self, table: Table, ids: np.ndarray) -> np.ndarray:
        ids = ids.astype(np.int32)
        out = np.full(len(ids), 7, np.uint8)
        self.library.call(
            *("stage_have_embedx", self.handle, table.handle, pointer(ids)),
            *(c_uint64(len(ids)), pointer(out)),
        )
        return out

    def fill(
        self,
        batch: Batch,
        wire: int,
        records: np.ndarray,
        at: np.ndarray | None = None,
        first: int = 0,
    ) -> None:
        self.library.call(
            *("stage_fill", self.handle, batch.handle, c_int32(wire), pointer(at)),
            *(c_uint64(first), pointer(records), c_uint64(len(records))),
        )

    def push(
        self, table: Table, plan: np.ndarray, wire: int, records: np.ndarray, of: Push
    ) -> None:
        gradient = of.gradient(c_void_p(), c_void_p())
        self.library.call(
            *("stage_push", self.handle, table.handle, pointer(plan), c_uint64(len(plan))),
            *(c_int32(wire), pointer(records), c_uint64(len(records)), byref(gradient)),
        )

    def close(self) -> None:
        self.library.get("close_staging", self.handle)
        self.handle = c_void_p()


class HostRanks:
    """libpbx_reference.so: records and sums of the host."""

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        self._native.pbx_reference_record_bytes.restype = c_uint64

    def pack(self, wire: int, rows: np.ndarray) -> np.ndarray:
        """(n, bytes of a record)."""
        rows = np.ascontiguousarray(rows)
        if wire == WIRES["float32"]:
            return rows.view(np.uint8)
        columns = c_uint64(rows.shape[1])
        width = self._native.pbx_reference_record_bytes(c_int32(wire), columns)
        out = np.empty((len(rows), width), np.uint8)
        self._native.pbx_reference_pack(
            c_int32(wire), pointer(rows), c_uint64(len(rows)), columns, pointer(out)
        )
        return out

    def unpack(self, wire: int, records: np.ndarray, columns: int) -> np.ndarray:
        if wire == WIRES["float32"]:
            return np.ascontiguousarray(records).view(np.float32)
        rows = np.empty((len(records), columns), np.float32)
        self._native.pbx_reference_unpack(
            c_int32(wire),
            pointer(records),
            c_uint64(len(records)),
            c_uint64(columns),
            pointer(rows),
        )
        return rows

    def merge(self, dim: int, n: int, plan: np.ndarray, of: Push, sums: np.ndarray) -> None:
        gradient = of.gradient(pointer(of.grad), pointer(of.show_click))
        self._native.pbx_reference_merge(
            c_int32(dim), c_uint64(n), pointer(plan), byref(gradient), pointer(sums)
        )
