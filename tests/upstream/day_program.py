"""Two days of two passes in the style of a PaddleBox job: python day_program.py PAGES OUT.

Each pass trains join on page views and update on instances. The first pass of a day saves a base,
the others a delta. Then an AucRunner measures how much each slot matters. Prints figures as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import paddle

import paddlebox
from paddlebox import compat
from paddlebox.config import TableConfig

pages, out = Path(sys.argv[1]), Path(sys.argv[2])
DIM = 8
SLOTS = ("user", "ad", "advertiser")
WIDTH = len(SLOTS) * (3 + DIM)


def network(phase: str, train: bool = True) -> tuple[list[Any], Any, Any]:
    """(variables fed, loss, click rate) of the program that is being built."""
    slots = [paddle.static.data(name, [-1, 1], "int64") for name in SLOTS]
    click = paddle.static.data("click", [-1, 1], "float32")
    place = paddle.static.data("box_cmatch_rank", [-1, 1], "int64")
    anchor = paddlebox.ops.create_anchor(f"{phase}_anchor")
    rows = paddlebox.ops.pull_box_sparse(slots, 3 + DIM, anchor=anchor)
    show_click = paddle.concat([paddle.ones_like(click), click], axis=1)
    features = [paddlebox.ops.continuous_value_model(row, show_click) for row in rows]
    x = paddle.concat(features, axis=1)
    if phase == "join":
        rank_offset = paddle.static.data("rank_offset", [-1, 7], "int32")
        shape = [3 * 3 * WIDTH, 8]
        x = paddle.concat([x, paddlebox.ops.rank_attention(x, rank_offset, shape)], axis=1)
    # An evaluation finds the parameters of the trained program by their names.
    for layer, (width, activation) in enumerate([(16, "relu"), (1, "sigmoid")]):
        names = {f"{part}_attr": f"{phase}_{part}_{layer}" for part in ("weight", "bias")}
        x = paddle.static.nn.fc(x, width, activation=activation, **names)
    ctr = x
    loss = paddle.nn.functional.binary_cross_entropy(ctr, click)
    if train:
        paddle.optimizer.Adam(0.01).minimize(loss)
    return [*slots, click, place], loss, ctr


paddle.enable_static()
paddle.seed(1)
exe = paddle.static.Executor(paddle.CPUPlace())
programs: dict[str, tuple[Any, Any, Any]] = {}
variables: list[Any] = []
for phase, kind in (("join", True), ("update", True), ("update", False)):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        variables, loss, ctr = network(phase, kind)
    if kind:
        exe.run(startup)
    programs[phase if kind else "test"] = (main, loss, ctr)

report: dict[str, Any] = {"metrics": [], "samples": []}
config = TableConfig(embedx_dim=DIM, embedx_threshold=0.0)
with paddlebox.Table(config, folder=out / "store", mem_budget_bytes=1 << 24) as table:
    dataset = compat.PadBoxSlotDataset(table, seed=1)
    dataset.init(slots=pages / "slots.yaml", data_format="csv", batch_size=128, thread_num=2)
    dataset.set_use_var(variables)
    dataset.set_parse_logkey(True)
    dataset.set_enable_pv_merge(True)
    dataset.set_pv_batch_size(40)
    dataset.set_rank_offset("rank_offset")
    box = compat.BoxWrapper(table, dataset)
    for phase, number in (("join", 1), ("update", 0)):
        box.init_metric("AucCalculator", f"{phase}_auc", "click", "ctr", "", "", number, "", False)
        box.init_metric(
            *("CmatchRankAucCalculator", f"{phase}_first", "click", "ctr", "box_cmatch_rank", ""),
            *(number, "222_1", False),
        )
    box.set_batch_max_ins_number(1000)

    files = sorted(pages.glob("train-*.csv"))
    for number, file in enumerate(files):
        day = f"2024010{1 + number // 2}"
        dataset.set_date(day)
        dataset.set_filelist([str(file)])
        dataset.preload_into_memory()
        dataset.wait_preload_done()
        box.set_phase(1)
        dataset.begin_pass()
        for phase in ("join", "update"):
            main, loss, ctr = programs[phase]
            result = box.train_from_dataset(exe, main, loss=loss, outputs={"ctr": ctr})
            report["samples"].append(result.samples)
            report["metrics"].append(
                [box.get_metric_msg(name) for name in box.get_metric_name_list(phase == "join")]
            )
            box.flip_phase()
        dataset.end_pass(True)
        dataset.release_memory()
        name = "base" if number % 2 == 0 else f"delta-{number}"
        if number % 2 == 0:
            box.save_base(f"{out}/saves/{day}/{number}", f"{out}/saves/{day}/{name}", day)
        else:
            box.save_delta(f"{out}/saves/{day}/{name}")
    report["batches"] = box.show_batch_ins_info()

    groups = [[], ["user"], ["ad", "advertiser"]]
    box.initialize_auc_runner(groups, 2, 10000, list(dataset.sparse_names))
    for number in range(len(groups)):
        box.init_metric(
            "AucCalculator", f"group {number}", "click", "ctr", "", "", number, "", False
        )
    box.set_test_mode(True)
    dataset.set_enable_pv_merge(False)
    dataset.set_filelist([str(pages / "test.csv")])
    dataset.load_into_memory()
    dataset.begin_pass()
    main, loss, ctr = programs["test"]
    for group in groups:
        dataset.slots_shuffle(group)
        box.train_from_dataset(exe, main, loss=loss, outputs={"ctr": ctr})
    dataset.end_pass(False)
    report["groups"] = [box.get_metric_msg(f"group {number}") for number in range(len(groups))]
    report["day has ended"] = [box.shrink_table(), box.shrink_table()]
    report["version"] = table.head.version if table.head is not None else 0
    report["rows"] = len(table.read_all()[0])
    dataset.close()
    box.finalize()
with paddlebox.Table(config, folder=out / "loaded", mem_budget_bytes=1 << 24) as table:
    report["loaded"] = compat.BoxWrapper(table).load_model(f"{out}/saves/20240102/delta-3")
print(json.dumps(report))
