"""Opens a frozen program for prediction."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from paddlebox import ops

paddle = ops.paddle


def create_predictor(program: bytes, parameters: bytes, threads: int) -> Any:
    """A predictor of `paddle.inference` on the CPU.

    Args:
        program, parameters: as Paddle saves them.
        threads: threads of one prediction.
    """
    inference = paddle.inference
    suffix = ".json" if program[:1] == b"{" else ".pdmodel"
    # From files, because Paddle 3.3.1 crashes if it gets a PIR program in buffers.
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"model{end}") for end in (suffix, ".pdiparams")]
        for path, content in zip(paths, (program, parameters), strict=True):
            Path(path).write_bytes(content)
        config = inference.Config(*paths)
        config.disable_gpu()
        config.disable_glog_info()
        config.disable_mkldnn()  # it prints to stdout, and is not faster here
        config.set_cpu_math_library_num_threads(threads)
        return inference.create_predictor(config)
