"""Feeds that are copied to the device before their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

OPEN = """
import ctypes, json
import numpy as np
from paddlebox._native import paddle
from paddlebox.config import HbmPlace
from paddlebox.data.feed_copies import FeedCopies, on_device
from paddlebox.store.options import DEVICE, check_place
check_place(HbmPlace.GPU)
"""
LATE = {"PADDLEBOX_DEVICE_LATE": "1"}


@pytest.mark.slow
def test_arrays_are_on_the_device_until_the_feed_is_dropped(
    in_new_process: Callable[..., Any], device: dict[str, str]
) -> None:
    code = """
send = FeedCopies(DEVICE, 0)
def feed(value):
    floats = np.full((3, 2), value, np.float32)
    feed = {"box_a": floats, "box_b": np.arange(value, dtype=np.int64)}
    return {**feed, "box_c": np.zeros(0, np.int32), "metric:d": np.zeros(3), "box_e": floats.T}
def address(sent):
    return on_device(sent)["box_a"]._ptr()
kept = [send(feed(value)) for value in (2, 3, 4)]
found = {"distinct": len({address(sent) for sent in kept})}
found["values"] = [[t.numpy().tolist() for _, t in sent.sent.values()] for sent in kept]
found["places"] = list({str(t.place) for sent in kept for _, t in sent.sent.values()})
dropped = address(kept.pop())
found["reused"] = address(send(feed(4))) == dropped
found["larger"] = send(feed(900)).sent["box_b"][1].numpy().tolist()
changed = kept.pop()
changed["box_a"] = changed["box_a"] + 1
found["kinds"] = {name: type(value).__name__ for name, value in on_device(changed).items()}
try:
    send({"box_a": np.zeros(1)})
except ValueError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""
    found = in_new_process(OPEN + code, env={**device, **LATE})
    assert found["distinct"] == 3
    assert found["values"] == [
        [[[v, v]] * 3, list(range(int(v))), [], [[v] * 3] * 2] for v in (2.0, 3.0, 4.0)
    ]
    assert found["places"] == ["Place(paddlebox_gpu:0)"]
    assert found["reused"]
    assert found["larger"] == list(range(900))
    on_device = {"box_b": "DenseTensor", "box_c": "DenseTensor", "box_e": "DenseTensor"}
    assert found["kinds"] == {"box_a": "ndarray", "metric:d": "ndarray", **on_device}
    assert "float64: expected float32, int32 or int64" in found["error"]


@pytest.mark.slow
def test_a_program_has_ended_on_the_device_when_it_has_run(
    in_new_process: Callable[..., Any], device: dict[str, str]
) -> None:
    """Memory of a feed is used again after its step. The test reads memory without a wait."""
    code = """
library = ctypes.CDLL(paddle_library)
paddle.enable_static()
program, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
with paddle.static.program_guard(program, startup):
    x = paddle.static.data("x", [4, 4], "float32")
    one = paddle.nn.initializer.Constant(1.0)
    w = paddle.static.create_parameter([4, 1], "float32", name="w", default_initializer=one)
    paddle.optimizer.Adam(0.25).minimize(paddle.mean(paddle.matmul(x, w)))
exe = paddle.static.Executor(paddle.CustomPlace(DEVICE, 0))
found = []
with paddle.static.scope_guard(scope):
    exe.run(startup)
    for _ in range(2):
        exe.run(program, feed={"x": np.ones((4, 4), np.float32)})
        value, at = np.zeros(4, np.float32), scope.find_var("w").get_tensor()._ptr()
        pointers = ctypes.c_void_p(value.ctypes.data), ctypes.c_void_p(at)
        library.pbx_hbm_to_host(*pointers, ctypes.c_uint64(16))
        found.append(value.tolist())
print(json.dumps(found))
"""
    path = f"{device['CUSTOM_DEVICE_ROOT']}/libpaddlebox_gpu.so"
    found = in_new_process(OPEN + f"paddle_library = {path!r}" + code, env={**device, **LATE})
    assert found == [pytest.approx([w] * 4, abs=1e-5) for w in (0.75, 0.5)]
