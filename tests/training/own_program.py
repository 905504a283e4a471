"""A user's own static program over slots: python own_program.py FOLDER LINES CASE.

Trains two passes and evaluates, through the public names alone; prints what the passes gave as
JSON. CASE: "works", or the mistake to make in a third pass, whose error is printed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddlebox
from paddlebox.config import Slots, TableConfig
from paddlebox.config.metrics import MetricConfig, MetricMethod

folder, file, case = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
DIM = 4
config = TableConfig(embedx_dim=DIM, embedx_threshold=0.0)
slots = Slots.model_validate(
    {
        "slots": [
            {"name": "click", "type": "label"},
            {"name": "age", "type": "dense", "dim": 2},
            {"name": "user", "type": "sparse"},
            {"name": "words", "type": "sparse"},
        ]
    }
)


def build(
    size: int = 3 + DIM, bad_loss: bool = False, train: bool = True
) -> tuple[list[Any], Any, Any]:
    """(variables fed, loss, logits) of the program that is being built."""
    user = paddle.static.data("user", [-1, 1], "int64")
    words = paddle.static.data("words", [-1, 3], "int64")
    age = paddle.static.data("age", [-1, 2], "float32")
    label = paddle.static.data("click", [-1, 1], "float32")
    rows = paddlebox.ops.pull_box_sparse([user, words], size)
    assert [list(r.shape)[1:] for r in rows] == [[size], [3, size]]
    pooled = [rows[0], paddle.mean(rows[1], axis=1) * 3.0]
    show_click = paddle.concat([paddle.ones_like(label), label], axis=1)
    features = [paddlebox.ops.continuous_value_model(p, show_click) for p in pooled]
    logits = paddle.nn.Linear(2 * size + 2, 1)(paddle.concat([*features, age], axis=1))
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(logits, label)
    if bad_loss:
        loss = loss / paddle.mean(label * 0.0)
    if train:
        paddle.optimizer.Adam(0.01).minimize(loss)
    return [user, words, age, label], loss, logits


def run(program: Any, variables: list[Any], loss: Any, **options: Any) -> Any:
    dataset.set_use_var(variables)
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.begin_pass()
    result = paddlebox.train_from_dataset(exe, program, dataset, loss=loss, **options)
    dataset.end_pass()
    return result


paddle.enable_static()
paddle.seed(1)
exe = paddle.static.Executor(paddle.CPUPlace())
mistakes: dict[str, dict[str, Any]] = {"size": {"size": 12}, "nan": {"bad_loss": True}, "works": {}}
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
    variables, loss, logits = build()
exe.run(startup)

with paddlebox.Table(config, folder=folder, mem_budget_bytes=1 << 20) as table:
    dataset = paddlebox.InMemoryDataset(table)
    dataset.init(slots=slots, batch_size=32)
    fetched: list[Any] = []
    options = {"logits": logits, "fetch_list": [logits], "fetch_handler": fetched.append}
    metric = MetricConfig(
        name="task", method=MetricMethod.CONTINUOUS, prediction="score", label="click"
    )
    options |= {"metrics": [metric], "outputs": {"score": logits}}
    results = [run(program, variables, loss, **options) for _ in range(2)]
    assert len(fetched) == sum(result.batches for result in results)
    assert fetched[-1][0].shape[1] == 1
    feasigns, rows = table.read_all()
    report = {
        "losses": [result.mean_loss for result in results],
        "aucs": [result.metrics["auc"] for result in results],
        "samples": [result.samples for result in results],
        "task": [result.metrics["task"] for result in results],
        "mean_logit": float(np.concatenate([f[0] for f in fetched[-results[1].batches :]]).mean()),
        "feasigns": len(feasigns),
        "digest": table.digest(),
    }
    if case == "works":
        # The names of the parameters are what the two programs share.
        test, unused = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(test, unused), paddle.utils.unique_name.guard():
            variables, loss, logits = build(train=False)
        dataset.set_test_mode(True)
        before = table.digest()
        report["test_auc"] = run(test, variables, loss, logits=logits).metrics["auc"]
        assert table.digest() == before
    else:
        wrong, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(wrong, startup):
            variables, loss, logits = build(**mistakes[case])
        exe.run(startup)
        try:
            run(wrong, variables, loss)
        except Exception as error:
            report["error"] = [type(error).__name__, str(error)]
    dataset.close()
with paddlebox.Table(config, folder=folder, mem_budget_bytes=1 << 20, read_only=True) as table:
    assert table.head is not None
    report["reopened"] = [table.head.version, table.digest()]
print(json.dumps(report, default=np.ndarray.tolist))
