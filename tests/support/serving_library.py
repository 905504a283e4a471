"""The serving library (ops/library/paddlebox_serve.h) through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import paddlebox

PACKAGE = Path(paddlebox.__path__[0])
LIBRARY, HEADER = PACKAGE / "libpaddlebox_serve.so", PACKAGE / "include" / "paddlebox_serve.h"
OK, INVALID_ARGUMENT, NOT_FOUND, CORRUPTION, IO_ERROR, OUT_OF_SPACE, FAILED_PRECONDITION = range(7)
HISTORY_MISSING = 8
DTYPES = {1: np.float32, 6: np.int32, 7: np.int64}  # of ONNX

OnVersion = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Options(ctypes.Structure):
    _fields_ = (
        ("interface", ctypes.c_uint32),
        ("follow_ms", ctypes.c_uint32),
        ("resident_bytes", ctypes.c_uint64),
        ("history_bytes", ctypes.c_uint64),
        ("pin", ctypes.c_uint64),
        ("ignore_unknown_fields", ctypes.c_int32),
        ("on_version", OnVersion),
        ("context", ctypes.c_void_p),
    )


class Error(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 1020))


class About(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("version", "generation", "day", "pass_number")),
        *((name, ctypes.c_uint64) for name in ("width", "sparse_slots", "dense_width", "tasks")),
        ("users", ctypes.c_uint64),
        ("model", ctypes.c_char_p),
        ("created_at", ctypes.c_char_p),
    )


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * 2),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


class ServingError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_library = ctypes.CDLL(str(LIBRARY))
_library.paddlebox_batch_new.restype = ctypes.c_void_p
_library.paddlebox_ignored_fields.restype = ctypes.c_uint64


def _call(function: Any, *arguments: Any) -> None:
    error = Error()
    if function(*arguments, ctypes.byref(error)):
        raise ServingError(error.code, error.message.decode())


class Version:
    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle, self.about = handle, About()
        _library.paddlebox_describe(handle, ctypes.byref(self.about))

    @property
    def onnx(self) -> bytes:
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call(_library.paddlebox_onnx, self._handle, ctypes.byref(data), ctypes.byref(size))
        return ctypes.string_at(data, size.value)

    def warm(self) -> None:
        _call(_library.paddlebox_warm, self._handle)

    def fill(self, instances: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """The input of the dense part, (B, width) float32."""
        room = np.empty((len(instances), self.about.width), np.float32)
        at, floats = ctypes.c_void_p(room.ctypes.data), ctypes.c_size_t(room.size)
        with _batch(instances) as batch:
            _call(_library.paddlebox_fill, self._handle, batch, at, floats)
        return room

    @contextmanager
    def user(
        self,
        history: Sequence[Mapping[str, Any]],
        candidates: Sequence[Mapping[str, Any]],
        user: str = "",
        after: int = 0,
    ) -> Iterator[User]:
        """A request for a user."""
        name, handle = user.encode(), ctypes.c_void_p()
        given = self._handle, name, ctypes.c_size_t(len(name)), ctypes.c_uint64(after)
        with _batch(history) as events, _batch(candidates) as asked:
            _call(_library.paddlebox_user_begin, *given, events, asked, ctypes.byref(handle))
        try:
            yield User(handle)
        finally:
            _library.paddlebox_user_end(handle)


class User:
    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs of the ONNX model."""
        tensors, count = ctypes.POINTER(Tensor)(), ctypes.c_size_t()
        into = ctypes.byref(tensors), ctypes.byref(count)
        _library.paddlebox_user_inputs(self._handle, *into)
        return {
            one.name.decode(): np.frombuffer(
                ctypes.string_at(one.data, one.bytes), DTYPES[one.type]
            ).reshape(one.shape[: one.rank])
            for one in tensors[: count.value]
        }

    def keep(self, known: np.ndarray) -> None:
        at, floats = ctypes.c_void_p(known.ctypes.data), ctypes.c_size_t(known.size)
        _call(_library.paddlebox_user_keep, self._handle, at, floats)


@contextmanager
def _batch(instances: Sequence[Mapping[str, Any]]) -> Iterator[ctypes.c_void_p]:
    batch = ctypes.c_void_p(_library.paddlebox_batch_new())
    try:
        for instance in instances:
            _library.paddlebox_batch_next(batch)
            for name, value in instance.items():
                if value is not None:
                    _set(batch, name.encode(), value)
        yield batch
    finally:
        _library.paddlebox_batch_free(batch)


def _set(batch: ctypes.c_void_p, name: bytes, value: Any) -> None:
    if isinstance(value, str):
        text = value.encode()
        _library.paddlebox_batch_text(batch, name, text, ctypes.c_size_t(len(text)))
    elif isinstance(value, float):
        _library.paddlebox_batch_real(batch, name, ctypes.c_double(value))
    elif isinstance(value, int) and value < 0:
        _library.paddlebox_batch_integer(batch, name, ctypes.c_int64(value))
    elif isinstance(value, int):
        _library.paddlebox_batch_id(batch, name, ctypes.c_uint64(value))
    else:
        _set_list(batch, name, value)


def _set_list(batch: ctypes.c_void_p, name: bytes, values: Sequence[Any]) -> None:
    n = len(values)
    if any(isinstance(value, str) for value in values):  # a request of C has one type a list
        texts = [str(value).encode() for value in values]
        sizes = (ctypes.c_size_t * n)(*map(len, texts))
        array = (ctypes.c_char_p * n)(*texts)
        _library.paddlebox_batch_texts(batch, name, array, sizes, ctypes.c_size_t(n))
    elif any(isinstance(value, float) for value in values):
        reals = (ctypes.c_double * n)(*values)
        _library.paddlebox_batch_reals(batch, name, reals, ctypes.c_size_t(n))
    elif any(value < 0 for value in values):
        integers = (ctypes.c_int64 * n)(*values)
        _library.paddlebox_batch_integers(batch, name, integers, ctypes.c_size_t(n))
    else:
        ids = (ctypes.c_uint64 * n)(*values)
        _library.paddlebox_batch_ids(batch, name, ids, ctypes.c_size_t(n))


class Server:
    def __init__(
        self,
        path: Path,
        *,
        follow_ms: int = 0,
        history_bytes: int = 1 << 20,
        pin: int = 0,
        ignore_unknown_fields: bool = False,
        on_version: Callable[[Version], int] | None = None,
    ) -> None:
        def hook(_context: int, version: int) -> int:
            return on_version(Version(ctypes.c_void_p(version))) if on_version is not None else 0

        self._hook = OnVersion(hook)  # as long as the server
        ignore = int(ignore_unknown_fields)
        sizes = 1 << 20, history_bytes
        options = Options(1, follow_ms, *sizes, pin, ignore, self._hook, None)
        self._handle = ctypes.c_void_p()
        where = str(path).encode(), ctypes.byref(options), ctypes.byref(self._handle)
        _call(_library.paddlebox_open, *where)

    def refresh(self) -> bool:
        changed = ctypes.c_int()
        _call(_library.paddlebox_refresh, self._handle, ctypes.byref(changed))
        return bool(changed.value)

    def check(self) -> None:
        """Raises the error of the last look for a new version."""
        _call(_library.paddlebox_trouble, self._handle)

    @property
    def ignored(self) -> int:
        return int(_library.paddlebox_ignored_fields(self._handle))

    @contextmanager
    def version(self) -> Iterator[Version]:
        handle = ctypes.c_void_p()
        _library.paddlebox_acquire(self._handle, ctypes.byref(handle))
        try:
            yield Version(handle)
        finally:
            _library.paddlebox_release(handle)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        _library.paddlebox_close(self._handle)
