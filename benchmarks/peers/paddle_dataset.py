"""Paddle's own InMemoryDataset, in its own process because it needs FLAGS_enable_pir_api=0.

Started by feeder.py. It reads "<file>\\t<threads>" from stdin and answers "<seconds>\\t<samples>".
"""

from __future__ import annotations

import os
import sys
import time

DENSE = 13
SLOTS = 26


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Paddle's output goes to stderr
    import paddle

    paddle.enable_static()
    variables = [
        paddle.static.data("label", [None, 1], "int64"),
        paddle.static.data("dense", [None, DENSE], "float32"),
    ]
    for slot in range(SLOTS):
        variables.append(paddle.static.data(f"C{slot + 1}", [None, 1], "int64", lod_level=1))
    for line in sys.stdin:
        file, threads = line.rstrip("\n").split("\t")
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(batch_size=512, thread_num=int(threads), use_var=variables, pipe_command="cat")
        dataset.set_filelist([file])
        started = time.perf_counter()
        dataset.load_into_memory()
        seconds = time.perf_counter() - started
        print(f"{seconds}\t{dataset.get_memory_data_size()}", file=answers, flush=True)
        dataset.release_memory()


if __name__ == "__main__":
    main()
