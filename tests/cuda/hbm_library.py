"""The C interface of ops/cuda/hbm.h by ctypes: nothing but numpy is needed.

As a program, `hbm_library.py gpu` (or host) builds the library for this machine's GPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys
from ctypes import (
    byref,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "ops/cuda/hbm.h"
RULES = ("naive", "adagrad", "std_adagrad", "adagrad_v2", "adam", "shared_adam", "ftrl")


class Rule(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        *((name, c_float) for name in ("learning_rate", "initial_range", "initial_g2sum")),
        *((name, c_float) for name in ("beta1", "beta2", "epsilon", "beta", "l1", "l2")),
        *((name, c_float) for name in ("min_bound", "max_bound")),
    ]


class Config(ctypes.Structure):
    _fields_ = [
        ("seed", c_uint64),
        *((name, c_int32) for name in ("embedx_dim", "expand_dim", "show_scale", "threads")),
        *((name, c_float) for name in ("nonclk_coeff", "click_coeff", "embedx_threshold")),
        *((name, Rule) for name in ("embed", "embedx", "expand")),
        ("slot_rates", c_void_p),
    ]


class Sizes(ctypes.Structure):
    _fields_ = [("rows", c_uint64), ("row_bytes", c_uint64), ("table_bytes", c_uint64)]


class Gradient(ctypes.Structure):
    _fields_ = [
        ("grad", c_void_p),
        *((name, c_int64) for name in ("stride", "extra", "weights_at")),
        ("show_click", c_void_p),
        *((name, c_int64) for name in ("show_click_stride", "instances", "slots")),
        ("scale", c_float),
        ("clip", c_int32),
        ("bound", c_float),
        ("day", c_uint32),
        ("with_expand", c_int32),
    ]


class Segments(ctypes.Structure):
    _fields_ = [
        ("ids", c_void_p),
        ("nnz", c_uint64),
        ("offsets", c_void_p),
        ("list_of", c_void_p),
        *((name, c_uint64) for name in ("lists", "segments", "slots", "extra")),
        ("use_cvm", c_int32),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        (name, c_uint64)
        for name in (
            *("rows_pushed", "ids_pushed", "bad_rows", "out_of_range"),
            *("absent", "an_absent"),
        )
    ]


class Times(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("pull_ns", "push_ns", "plan_ns")]


STRUCTURES = {
    "pbx_hbm_rule": Rule,
    "pbx_hbm_config": Config,
    "pbx_hbm_sizes": Sizes,
    "pbx_hbm_gradient": Gradient,
    "pbx_hbm_segments": Segments,
    "pbx_hbm_report": Report,
    "pbx_hbm_times": Times,
}
SCALARS = {
    "int": c_int,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "uint16_t": c_uint16,
    "uint32_t": c_uint32,
    "uint64_t": c_uint64,
    "float": c_float,
    "void": None,
}


def _type_of(words: str) -> Any:
    """What ctypes has for a type of the header."""
    name = words.replace("const", "").strip()
    if "*" in name:
        return c_char_p if name == "char*" else c_void_p
    return STRUCTURES.get(name, SCALARS.get(name))


def _declared(words: str) -> tuple[str, Any]:
    """The name and the type of `const float* rows`."""
    found = re.fullmatch(r"(.*?[\s*])(\w+)", words.strip())
    assert found is not None, words
    return found[2], _type_of(re.sub(r"\s*\*", "*", found[1]).strip())


def _header() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def functions() -> dict[str, tuple[Any, list[Any]]]:
    """Of each function of the header: what it returns, and its parameters."""
    found = {}
    for result, name, parameters in re.findall(
        r"PBX_HBM_API\s+([\w\s*]+?[\s*])pbx_hbm_(\w+)\(([^)]*)\);", _header()
    ):
        own = [] if parameters == "void" else parameters.split(",")
        found[name] = (_type_of(result.strip()), [_declared(one)[1] for one in own])
    return found


def structures() -> dict[str, list[tuple[str, Any]]]:
    """Of each structure of the header: its fields, in order."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for fields, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", _header(), re.DOTALL):
        found[name] = []
        for line in filter(None, (line.strip() for line in fields.split(";"))):
            first, *others = line.split(",")  # float l1, l2
            of, kind = _declared(first)
            found[name] += [(of, kind), *((other.strip(), kind) for other in others)]
    return found


def rule(kind: str, **changed: float) -> Rule:
    values = {
        "learning_rate": 0.05,
        "initial_range": 0.01,
        "initial_g2sum": 3.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "beta": 1.0,
        "l1": 0.0,
        "l2": 0.0,
        "min_bound": -10.0,
        "max_bound": 10.0,
    } | changed
    return Rule(kind=RULES.index(kind), **values)


def config(dim: int = 8, kind: str = "adagrad", **changed: Any) -> Config:
    values: dict[str, Any] = {
        "seed": 7,
        "show_scale": 1,
        "threads": 3,
        "nonclk_coeff": 0.1,
        "click_coeff": 1.0,
        "embedx_threshold": 0.0,
        "embed": rule(kind),
        "embedx": rule(kind),
        "expand": rule(kind),
    } | changed
    return Config(embedx_dim=dim, **values)


class Error(Exception):
    """A function of the library has failed. args: the code, the message."""


class Library:
    """libpbx_hbm_<device>.so."""

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        self._functions = {}
        for name, (result, parameters) in functions().items():
            function = self._functions[name] = getattr(self._native, f"pbx_hbm_{name}")
            function.restype, function.argtypes = result, parameters

    def call(self, name: str, *arguments: Any) -> None:
        code = self.get(name, *arguments)
        if code != 0:
            raise Error(code, self.get("error").decode())

    def get(self, name: str, *arguments: Any) -> Any:
        function = self._functions[name]
        assert len(arguments) == len(function.argtypes), name  # ctypes lets more of them through
        return function(*arguments)

    @property
    def backend(self) -> str:
        return str(self.get("backend").decode())


class OnDevice:
    """An array in the memory of the device."""

    def __init__(self, library: Library, array: np.ndarray) -> None:
        self._library, self.shape, self.dtype = library, array.shape, array.dtype
        self.nbytes = array.nbytes
        self.pointer = c_void_p()
        library.call("malloc", c_uint64(max(1, array.nbytes)), byref(self.pointer))
        self.put(array)

    def put(self, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array, self.dtype)
        assert array.nbytes == self.nbytes
        self._library.call("to_device", self.pointer, pointer(array), c_uint64(self.nbytes))

    def get(self) -> np.ndarray:
        self._library.call("synchronize", None)
        array = np.empty(self.shape, self.dtype)
        self._library.call("to_host", pointer(array), self.pointer, c_uint64(self.nbytes))
        return array

    def __del__(self) -> None:
        self._library.get("free", self.pointer)


def pointer(array: np.ndarray | None) -> c_void_p:
    if array is None:
        return c_void_p()
    assert array.flags.c_contiguous
    return c_void_p(array.ctypes.data)


class Device:
    """A device with the rows of one configuration."""

    def __init__(self, library: Library, of: Config, device: int = 0) -> None:
        self.library, self.config = library, of
        self.handle = c_void_p()
        library.call("open", byref(of), c_int(device), byref(self.handle))
        self.words: int = library.get("row_words", self.handle)

    def put(self, array: np.ndarray) -> OnDevice:
        return OnDevice(self.library, np.ascontiguousarray(array))

    def plan(self, ids: np.ndarray, offsets: np.ndarray, stamp: int = 1) -> OnDevice:
        room = self.library.get("plan_room", c_uint64(len(ids)))
        plan = self.put(np.zeros(room, np.int32))
        on_device = self.put(ids.astype(np.int32)), self.put(offsets.astype(np.int32))
        self.library.call(
            "plan",
            self.handle,
            on_device[0].pointer,
            on_device[1].pointer,
            c_uint64(len(offsets) - 1),
            c_uint64(len(ids)),
            c_int32(stamp),
            plan.pointer,
            None,
        )
        self.library.call("synchronize", None)
        return plan

    def take_times(self) -> Times:
        found = Times()
        self.library.call("wait", self.handle)
        self.library.call("take_times", self.handle, byref(found))
        return found

    def close(self) -> None:
        self.library.get("close", self.handle)
        self.handle = c_void_p()


class Table:
    """The rows of one pass. keys: (n) mixed, ascending."""

    def __init__(self, device: Device, keys: np.ndarray, stamp: int = 1) -> None:
        self.device, self.library, self.keys = device, device.library, keys.astype(np.uint64)
        self.handle = c_void_p()
        self.library.call(
            *("begin", device.handle, pointer(self.keys), c_uint64(len(keys))),
            *(c_int32(stamp), byref(self.handle)),
        )

    def expect(self, refused: np.ndarray) -> None:
        self.library.call("expect", self.handle, pointer(refused), c_uint64(len(refused)))

    def report(self) -> Report:
        found = Report()
        self.library.call("wait", self.device.handle)
        self.library.call("report_of", self.handle, byref(found), None)
        return found

    def bad_by_slot(self) -> dict[int, int]:
        counts = np.zeros(65536, np.uint64)
        self.library.call("wait", self.device.handle)
        self.library.call("report_of", self.handle, byref(Report()), pointer(counts))
        return {int(slot): int(counts[slot]) for slot in np.nonzero(counts)[0]}

    def sizes(self) -> Sizes:
        found = Sizes()
        self.library.call("sizes_of", self.handle, byref(found))
        return found

    def put_rows(self, rows: np.ndarray, ids: np.ndarray | None = None, first: int = 0) -> None:
        """rows: from `first` on."""
        self.library.call(
            "put_rows",
            self.handle,
            pointer(ids),
            c_uint64(first),
            c_uint64(len(rows if ids is None else ids)),
            pointer(np.ascontiguousarray(rows, np.float32)),
        )

    def create_rows(self, ids: np.ndarray, slots: np.ndarray) -> None:
        self.library.call(
            "create_rows", self.handle, pointer(ids), pointer(slots), c_uint64(len(ids))
        )

    def rows(self, ids: np.ndarray | None = None, first: int = 0) -> np.ndarray:
        """All rows from `first` on; with ids, the others are NaN."""
        rows = np.full((len(self.keys) - first, self.device.words), np.nan, np.float32)
        count = len(rows if ids is None else ids)
        self.library.call(
            "get_rows", self.handle, pointer(ids), c_uint64(first), c_uint64(count), pointer(rows)
        )
        return rows

    def carry(self, source: Table) -> int:
        copied = c_uint64()
        self.library.call("carry", source.handle, self.handle, byref(copied))
        return copied.value

    def round(self, precision: int, number: int) -> None:
        self.library.call("round", self.handle, precision, number)

    def count(self, counted: np.ndarray | None) -> None:
        self.library.call("count", self.handle, pointer(counted))

    def changed(self) -> np.ndarray:
        ids, count = np.empty(len(self.keys), np.int32), c_uint64()
        self.library.call("changed", self.handle, pointer(ids), byref(count))
        return ids[: count.value].copy()

    def find(self, feasigns: np.ndarray) -> np.ndarray:
        asked = self.device.put(feasigns.astype(np.uint64))
        ids = self.device.put(np.full(len(feasigns), -2, np.int32))
        self.library.call(
            "find", self.handle, asked.pointer, c_uint64(len(feasigns)), ids.pointer, None
        )
        return ids.get()

    def pull(self, ids: np.ndarray) -> np.ndarray:
        asked = self.device.put(ids.astype(np.int32))
        shape = (len(ids), 3 + self.device.config.embedx_dim)
        out = self.device.put(np.full(shape, np.nan, np.float32))
        self.library.call("pull", self.handle, asked.pointer, c_uint64(len(ids)), out.pointer, None)
        return out.get()

    def pull_extended(self, ids: np.ndarray) -> np.ndarray:
        asked, of = self.device.put(ids.astype(np.int32)), self.device.config
        shape = (len(ids), 3 + of.embedx_dim + of.expand_dim)
        out = self.device.put(np.full(shape, np.nan, np.float32))
        self.library.call("pull_extended", self.handle, asked.pointer, len(ids), out.pointer, None)
        return out.get()

    def pull_pooled(
        self,
        ids: np.ndarray,
        offsets: np.ndarray,
        slots: int,
        extra: int,
        use_cvm: bool,
        list_of: np.ndarray | None = None,
    ) -> np.ndarray:
        """(instances, slots * width + extra); what is between is 5."""
        asked = self.device.put(ids.astype(np.int32))
        at = self.device.put(offsets.astype(np.int32))
        lists = None if list_of is None else self.device.put(list_of.astype(np.int32))
        segments = len(offsets) - 1 if list_of is None else len(list_of)
        width = (3 if use_cvm else 1) + self.device.config.embedx_dim
        shape = (segments // slots, slots * width + extra)
        out = self.device.put(np.full(shape, 5, np.float32))
        of = Segments(
            ids=asked.pointer,
            nnz=len(ids),
            offsets=at.pointer,
            list_of=lists.pointer if lists is not None else None,
            lists=len(offsets) - 1,
            segments=segments,
            slots=slots,
            extra=extra,
            use_cvm=use_cvm,
        )
        self.library.call("pull_pooled", self.handle, byref(of), out.pointer, None)
        return out.get()

    def push(self, plan: OnDevice, size: int, of: Push) -> int:
        """Returns how many rows had sums that are not finite."""
        grad, counts = self.device.put(of.grad), self.device.put(of.show_click)
        gradient = of.gradient(grad.pointer, counts.pointer)
        before = self.report().bad_rows
        self.library.call("push", self.handle, plan.pointer, c_uint64(size), byref(gradient), None)
        return int(self.report().bad_rows - before)

    def drop(self) -> None:
        self.library.get("drop", self.handle)
        self.handle = c_void_p()


class Push(NamedTuple):
    """What a push is given. grad: (instances, slots * stride + extra)."""

    grad: np.ndarray
    show_click: np.ndarray  # (instances, 2)
    slots: int
    stride: int
    extra: int = 0
    weights_at: int = 2
    scale: float = 1.0
    clip: bool = False
    bound: float = 10.0
    day: int = 0
    with_expand: bool = False

    def gradient(self, grad: c_void_p, show_click: c_void_p) -> Gradient:
        return Gradient(
            grad=grad,
            stride=self.stride,
            extra=self.extra,
            weights_at=self.weights_at,
            show_click=show_click,
            show_click_stride=self.show_click.shape[1],
            instances=len(self.show_click),
            slots=self.slots,
            scale=self.scale,
            clip=int(self.clip),
            bound=self.bound,
            day=self.day,
            with_expand=int(self.with_expand),
        )


class Reference:
    """libpbx_reference.so: the host's tier on plain arrays."""

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        self._native.pbx_reference_mix.restype = c_uint64
        self._native.pbx_reference_plan.restype = c_uint64

    def mix(self, feasigns: np.ndarray) -> np.ndarray:
        mixed = [self._native.pbx_reference_mix(c_uint64(int(f))) for f in feasigns]
        return np.array(mixed, np.uint64)

    def create(self, of: Config, keys: np.ndarray, slots: np.ndarray, words: int) -> np.ndarray:
        rows = np.empty((len(keys), words), np.float32)
        self._native.pbx_reference_create(
            byref(of), pointer(keys), pointer(slots), c_uint64(len(keys)), pointer(rows)
        )
        return rows

    def pull(self, of: Config, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        out = np.empty((len(ids), 3 + of.embedx_dim), np.float32)
        self._native.pbx_reference_pull(
            byref(of), pointer(rows), pointer(ids), c_uint64(len(ids)), pointer(out)
        )
        return out

    def pull_pooled(
        self,
        of: Config,
        rows: np.ndarray,
        ids: np.ndarray,
        offsets: np.ndarray,
        slots: int,
        extra: int,
        use_cvm: bool,
    ) -> np.ndarray:
        segments = len(offsets) - 1
        width = (3 if use_cvm else 1) + of.embedx_dim
        out = np.full((segments // slots, slots * width + extra), 5, np.float32)
        self._native.pbx_reference_pull_pooled(
            *(byref(of), pointer(rows), pointer(ids), pointer(offsets), c_uint64(segments)),
            *(c_uint64(slots), c_uint64(extra), c_int32(use_cvm), pointer(out)),
        )
        return out

    def plan(self, ids: np.ndarray, offsets: np.ndarray, stamp: int = 1) -> np.ndarray:
        plan = np.zeros(4 + 3 * len(ids), np.int32)
        size = self._native.pbx_reference_plan(
            pointer(ids),
            pointer(offsets),
            c_uint64(len(offsets) - 1),
            c_int32(stamp),
            pointer(plan),
        )
        return plan[:size].copy()

    def push(
        self, of: Config, keys: np.ndarray, rows: np.ndarray, plan: np.ndarray, push: Push
    ) -> None:
        """Changes rows."""
        gradient = push.gradient(pointer(push.grad), pointer(push.show_click))
        self._native.pbx_reference_push(
            byref(of), pointer(keys), pointer(rows), pointer(plan), byref(gradient)
        )

    def round(
        self, of: Config, keys: np.ndarray, rows: np.ndarray, precision: int, number: int
    ) -> None:
        """Changes rows."""
        self._native.pbx_reference_round(
            *(byref(of), pointer(keys), c_uint64(len(keys)), c_int32(precision)),
            *(c_uint64(number), pointer(rows)),
        )


def build(device: str) -> Path:
    """Builds the libraries for `host` or `gpu`. Returns their folder."""
    folder = ROOT / "build/cuda"
    folder.mkdir(parents=True, exist_ok=True)
    nvcc = os.environ.get("NVCC") or "nvcc"
    jobs = os.cpu_count() if device == "gpu" else 2
    with open(folder / "lock", "w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [
                *("make", "-C", str(ROOT / "tests/cuda"), f"-j{jobs}", device),
                *(f"NVCC={nvcc}", *architecture(device)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"make {device} in tests/cuda:\n{done.stdout}{done.stderr}")
    return folder


def architecture(device: str) -> list[str]:
    """ARCH=90 for an H100; nothing where the driver does not say, or the caller did."""
    if device != "gpu" or "ARCH" in os.environ or shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {line.strip().replace(".", "") for line in done.stdout.splitlines()}
    return [f"ARCH={' '.join(sorted(found))}"] if found and all(map(str.isdigit, found)) else []


if __name__ == "__main__":
    print(build(sys.argv[1]))
