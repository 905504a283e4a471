"""Trains a static program with a dump: python dumped_program.py FOLDER LINES LINES_WITH_IDS.

Prints what the steps fetched, and the messages of mistakes, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddlebox
from paddlebox.compat.dump import BY_ID, RANDOM, TrainingDump
from paddlebox.config import TableConfig
from paddlebox.errors import PassError, StoreError
from tests.support.instances import SLOTS

folder, plain, with_ids = Path(sys.argv[1]), *sys.argv[2:]
DIM = 4
paddle.enable_static()
paddle.seed(1)
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
    user = paddle.static.data("user", [-1, 1], "int64")
    age = paddle.static.data("age", [-1, 2], "float32")
    label = paddle.static.data("click", [-1, 1], "float32")
    rows = paddlebox.ops.pull_box_sparse(user, 3 + DIM)
    layer = paddle.nn.Linear(3 + DIM + 2, 1, weight_attr="weight")
    logits = layer(paddle.concat([rows, age], axis=1))
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, label)
    paddle.optimizer.Adam(0.01).minimize(loss)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(startup)

fetched: list[Any] = []
fields = {"user": user, "age": age}


def train(file: str, dump: TrainingDump) -> None:
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.begin_pass()

    def take(values: list[np.ndarray]) -> None:
        weight = np.asarray(program.state_dict("param")["weight"])
        fetched.append([np.asarray(v).tolist() for v in (*values, weight)])
        dump.take(values)

    with dump:
        paddlebox.train_from_dataset(
            exe,
            program,
            dataset,
            loss=loss,
            fetch_list=dump.fields,
            fetch_handler=take,
            watch=dump.write,
        )
    dataset.end_pass()


def refused(**options: Any) -> str:
    try:
        with TrainingDump(folder / "whole", dataset, fields, **options):
            return ""
    except (ValueError, StoreError) as error:
        return str(error)


config = TableConfig(embedx_dim=DIM, embedx_threshold=0.0)
with paddlebox.Table(config, folder=folder / "store", mem_budget_bytes=1 << 20) as table:
    dataset = paddlebox.InMemoryDataset(table)
    dataset.init(slots=SLOTS, batch_size=32, use_var=[user, age, label])
    whole = TrainingDump(folder / "whole", dataset, fields, program, ["weight"])
    train(plain, whole)
    again = refused()
    dataset.set_parse_ins_id(True)
    for name, mode in (("by_id", BY_ID), ("random", RANDOM)):
        train(with_ids, TrainingDump(folder / name, dataset, {"user": user}, mode=mode, interval=4))
    report = {
        "fetched": fetched,
        "again": again,
        "unknown": refused(program=program, params=["absent"]),
        "mode": refused(mode=3),
        "interval": refused(interval=0),
    }
    unopened = TrainingDump(folder / "unopened", dataset, {})
    try:
        unopened.write(1, 0)
    except PassError as error:
        report["unopened"] = str(error)
    try:
        with TrainingDump(folder / "shapes", dataset, {"user": user, "loss": loss}) as dump:
            dump.take([np.zeros((3, 1), np.int64), np.zeros((1,), np.float32)])
            dump.write(1, 3)
    except ValueError as error:
        report["shape"] = str(error)
    dataset.close()
print(json.dumps(report))
