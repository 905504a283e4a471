"""Trains small datasets in several ways: python dataset_program.py MODE FOLDER. Prints as JSON what
each way gave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddlebox
from paddlebox import compat
from paddlebox.config import TableConfig

mode, folder = sys.argv[1], Path(sys.argv[2])
DIM, SLOTS = 2, {"slot1": 1, "slot2": 3, "slot3": 3, "slot4": 4}
# A label, then the ids of four slots.
LINES = [
    f"1 {n % 2} 1 {n} 2 3 {n} 3 4 5 {n} {4 if n % 3 else 1} {'5 ' * (3 if n % 3 else 0)}{n}"
    for n in range(1, 8)
]
FLOATS = [f"1 {n % 2} 1 {n} 2 {n / 2} 0.5" for n in range(1, 8)]
# Ids with one to four instances. Instances of id1 have the same slot twice.
MERGED = [
    *("1 id1 1 1 1 1 1 0 1 0 1 0", "1 id1 1 0 1 2 1 0 1 0 1 0", "1 id2 1 1 1 1 1 0 1 0 1 0"),
    *("1 id3 1 1 1 5 1 0 1 7 1 0", "1 id3 1 0 1 0 2 6 6 1 0 1 8", "1 id4 1 0 1 9 1 0 1 0 1 0"),
    *(f"1 id5 1 0 1 0 1 {n} 1 0 1 0" for n in range(1, 4)),
]


def written(name: str, lines: list[str]) -> list[str]:
    """Two files with these lines."""
    paths = [folder / f"{name}-{part}.txt" for part in "ab"]
    for part, path in enumerate(paths):
        path.write_text("".join(f"{line}\n" for line in lines[part * 5 : 5 + part * len(lines)]))
    return [str(path) for path in paths]


class Program:
    """A network over the slots, with one method to train a dataset in any mode."""

    def __init__(self, floats: bool = False, trains: bool = True) -> None:
        slots = {"slot1": 1, "dense": 2} if floats else SLOTS
        self.floats, self.trains = floats, trains
        spec = {
            "click": (1, "float32"),
            **{n: (w, "float32" if n == "dense" else "int64") for n, w in slots.items()},
        }
        width = 3 + DIM
        columns = width + 2 if floats else len(slots) * width
        if mode == "dygraph":
            self.variables = [
                paddle.static.InputSpec([None, w], t, n) for n, (w, t) in spec.items()
            ]
            self.linear, self.anchor = paddle.nn.Linear(columns, 1), paddlebox.ops.create_anchor()
            self.optimizer = paddle.optimizer.SGD(0.01, parameters=self.linear.parameters())
            return
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, self.startup):
            made = {n: paddle.static.data(n, [-1, w], t) for n, (w, t) in spec.items()}
            self.variables = list(made.values())
            self.loss, self.logits = self.built(made, paddle.nn.Linear(columns, 1), None)
            if trains:
                paddle.optimizer.SGD(0.01).minimize(self.loss)
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(self.startup)

    def built(self, inputs: dict[str, Any], linear: Any, anchor: Any) -> tuple[Any, Any]:
        click = inputs["click"]
        slots = [tensor for name, tensor in inputs.items() if name.startswith("slot")]
        rows = paddlebox.ops.pull_box_sparse(slots, 3 + DIM, anchor=anchor)
        pooled = [row if len(row.shape) == 2 else paddle.mean(row, axis=1) for row in rows]
        show_click = paddle.concat([paddle.ones_like(click), click], axis=1)
        features = [paddlebox.ops.continuous_value_model(row, show_click) for row in pooled]
        logits = linear(
            paddle.concat([*features, *([inputs["dense"]] if self.floats else [])], axis=1)
        )
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, click)
        return loss, logits

    def train(self, dataset: Any, fetch: Callable[..., None] | None = None) -> list[float]:
        """The losses of the batches of a dataset; [] of a dataset that is not read."""
        losses: list[float] = []
        if mode != "dygraph":
            paddlebox.train_from_dataset(
                self.exe,
                self.main,
                dataset,
                loss=self.loss,
                fetch_list=[self.logits],
                fetch_handler=fetch,
                watch=lambda _batches, _samples, loss, _metrics: losses.append(loss),
            )
            return losses
        for batch in dataset:
            inputs = {n: paddle.to_tensor(batch[n]) for n in (v.name for v in self.variables)}
            loss, logits = self.built(inputs, self.linear, self.anchor)
            if self.trains:
                loss.backward()
                self.optimizer.step()
                self.optimizer.clear_grad()
            if fetch is not None:
                fetch([logits.numpy()])
            losses.append(float(loss))
        return losses


def opened(name: str, program: Program, lines: list[str], label: str = "click", **init: Any) -> Any:
    dataset = compat.DatasetFactory(table, seed=1).create_dataset(name)
    dataset.init(batch_size=32, thread_num=3, pipe_command="cat", download_cmd="cat", **init)
    dataset.set_use_var(program.variables, label=label)
    dataset.set_filelist(written(name, lines))
    return dataset


def loaded(dataset: Any) -> Any:
    dataset.load_into_memory()
    dataset.begin_pass()
    return dataset


def counts() -> np.ndarray:
    """The shows and clicks of all rows."""
    table.wait_commit()
    return np.asarray(table.first.read_all()[1][:, 1:3].sum(axis=0))


def tagged(lines: list[str]) -> list[str]:
    return [f"1 id{number} 1 text{number} {line}" for number, line in enumerate(lines)]


paddle.enable_static() if mode != "dygraph" else paddle.disable_static()
config = TableConfig(embedx_dim=DIM, embedx_threshold=0.0)
report: dict[str, Any] = {}
with paddlebox.Table(config, folder=folder / "store", mem_budget_bytes=1 << 22) as table:
    program = Program()

    dataset = opened("InMemoryDataset", program, tagged(LINES))
    dataset._init_distributed_settings(
        parse_ins_id=True, parse_content=True, fea_eval=True, candidate_size=10000
    )
    dataset.load_into_memory()
    dataset.local_shuffle()
    dataset.begin_pass()
    report["tags"] = sorted(dataset.ins_ids(0, 7))
    report["losses"] = [program.train(dataset)[0] for _ in range(2)]
    dataset.end_pass()

    dataset = opened("InMemoryDataset", program, LINES)
    dataset._init_distributed_settings(fea_eval=True, candidate_size=1)
    dataset._set_generate_unique_feasigns(True, 15)
    dataset.load_into_memory()
    dataset.slots_shuffle(["slot1"])
    dataset.local_shuffle()
    dataset._generate_local_tables_unlock(0, 11, 1, 25, 15)
    dataset.begin_pass()
    report["ten"] = [len(program.train(dataset)) for _ in range(10)]
    dataset.end_pass()

    dataset = opened("InMemoryDataset", program, MERGED)
    dataset._init_distributed_settings(merge_size=2)
    loaded(dataset)
    report["merged"] = [dataset.get_memory_data_size(), dataset.ins_ids(0, 1)]
    program.train(dataset)
    dataset.end_pass()

    floats = Program(floats=True)
    dataset = loaded(opened("InMemoryDataset", floats, FLOATS))
    report["floats"] = [len(floats.train(dataset)) for _ in range(3)]
    dataset.end_pass()

    dataset = opened("QueueDataset", program, LINES)
    report["queue"] = len(program.train(dataset))
    errors = []
    for broken in (dataset, compat.QueueDataset(table)):
        try:
            program.train(broken)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    report["nothing to stream"] = errors

    report["counted"] = []
    for label in ("click", ""):
        before_pass, program = counts(), Program()
        dataset = loaded(opened("InMemoryDataset", program, LINES, label))
        program.train(dataset)
        dataset.end_pass()
        report["counted"].append((counts() - before_pass).tolist())

    program = Program(trains=False)
    dataset = opened("InMemoryDataset", program, LINES, data_feed_type="SlotRecordInMemoryDataFeed")
    before = table.digest()
    dataset.set_test_mode(True)
    fetched: list[np.ndarray] = []
    program.train(loaded(dataset), lambda values: fetched.append(values[0]))
    dataset.end_pass()
    report["infer"] = [table.digest() == before, [len(values) for values in fetched]]

    try:
        opened("InMemoryDataset", program, LINES, input_type=1)
    except ValueError as error:
        report["input type"] = str(error)
print(json.dumps(report))
