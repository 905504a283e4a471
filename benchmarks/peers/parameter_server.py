"""One process, server or trainer, of Paddle's own parameter server, for ranks.py.

    python parameter_server.py --keys K --batch B --out OUT FILE ...

It needs a Paddle that has the parameter server (3.0.0 is the last), and nothing else of this
project. The environment names the role of the process, as Paddle requires (of_ranks.py). A trainer
first loads its files into Paddle's InMemoryDataset, so that only training is timed: one walk over
the files to warm up, then one that counts. FILE is slot text: a label, one slot with all ids, and
one dense slot.

It runs asynchronously (a_sync), because the other modes do not run here:

  synchronous  a segmentation fault in send_barrier; the runtime of 3.0.0 creates the Communicator
               that it needs only in geo mode
  geo          init_params refuses the SelectedRows of sparse_embedding; with a replicated embedding
               of 2 M rows, the first push is over the 64 MiB that its servers accept
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.base import role_maker

SLOTS, DENSE, DIM = 26, 13, 16


def network(keys: int) -> tuple[list[Any], Any]:
    """The inputs and the loss. All slots share a table, as ours do, and one lookup."""
    data = paddle.static.data
    label = data("click", [None, 1], "int64")
    ids = data("ids", [None, SLOTS], "int64")
    values = data("values", [None, DENSE], "float32")
    rows = paddle.static.nn.sparse_embedding(paddle.reshape(ids, [-1, 1]), [keys, 1 + DIM])
    rows = paddle.reshape(rows, [-1, SLOTS * (1 + DIM)])
    hidden = paddle.concat([rows, values], axis=1)
    for size in (400, 400, 400):
        hidden = paddle.static.nn.fc(hidden, size, activation="relu")
    score = paddle.static.nn.fc(hidden, 1)
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(
        score, paddle.cast(label, "float32")
    )
    return [label, ids, values], loss


def train(options: argparse.Namespace, inputs: list[Any]) -> dict[str, float]:
    dataset = paddle.distributed.InMemoryDataset()
    dataset.init(batch_size=options.batch, thread_num=1, pipe_command="cat", use_var=inputs)
    dataset.set_filelist(options.files)
    dataset.load_into_memory()
    samples = dataset.get_memory_data_size()  # before readers take samples out
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    seconds = []
    for _ in range(2):
        fleet.barrier_worker()
        begin = time.perf_counter()
        executor.train_from_dataset(paddle.static.default_main_program(), dataset, thread=1)
        fleet.barrier_worker()  # waits for the slowest trainer
        seconds.append(time.perf_counter() - begin)
    return {"samples_per_s": samples * fleet.worker_num() / seconds[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description="one process of Paddle's parameter server")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="batch size of a trainer")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    os.chdir(options.out.parent)  # train_from_dataset writes a <number>_train_desc.prototxt here
    paddle.enable_static()
    fleet.init(role_maker.PaddleCloudRoleMaker())
    inputs, loss = network(options.keys)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    adam = paddle.optimizer.Adam(learning_rate=1e-3, lazy_mode=True)
    fleet.distributed_optimizer(adam, strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    figures = train(options, inputs)
    if fleet.is_first_worker():
        options.out.write_text(json.dumps(figures) + "\n")
    fleet.stop_worker()


if __name__ == "__main__":
    main()
