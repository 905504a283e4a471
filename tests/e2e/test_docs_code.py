"""Code and pieces of configs on pages of the docs: the code is run, the pieces are validated."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlebox.config import Config, Slots
from tests.conftest import ROOT, call

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SECTIONS = set(Config.model_fields)
# What a piece of a config leaves to the rest of the file.
DATA = {"format": "csv", "slots": "slots.yaml", "train_files": ["a.csv"]}
SOME_SLOTS = [{"name": "click", "type": "label"}, {"name": "user", "type": "sparse"}]

# What the programs of the pages take for granted: two programs over one table, and their data.
PREAMBLE = """
import paddle
import paddlebox
from paddlebox.config import TableConfig

def write(name, tags, instances):
    with open(name, "w") as file:
        for n in range(instances):
            key = f"{n:011d}0de0{1 + n % 3}{n // 3:016x}"  # cmatch 222, ranks 1 to 3 of a view
            slots = f"1 {n % 2} 1 {n % 3 % 2} 1 0 1 {1 + n % 7} 1 {100 + n % 11}"
            file.write(f"1 {key} {slots}\\n" if tags else f"{slots}\\n")

with open("slots.yaml", "w") as file:
    file.write("slots:\\n- {name: click, type: label}\\n- {name: bought, type: dense}\\n")
    file.write("- {name: word, type: dense}\\n- {name: user, type: sparse}\\n")
    file.write("- {name: item, type: sparse}\\n")
write("part-0", False, 600)
write("part-1", False, 500)
with open("words-20240101.txt", "w") as file:
    file.write("\\n".join(f"w{n} " + " ".join("0.5" for _ in range(16)) for n in range(3)) + "\\n")

paddle.enable_static()
table = paddlebox.Table(TableConfig(embedx_dim=4), folder="store", mem_budget_bytes=1 << 28)
exe = paddle.static.Executor(paddle.CPUPlace())

def built(program):
    with paddle.static.program_guard(program, startup):
        user, item = (paddle.static.data(n, [-1, 1], "int64") for n in ("user", "item"))
        click = paddle.static.data("click", [-1, 1], "float32")
        rows = paddlebox.ops.pull_box_sparse([user, item], size=3 + 4)
        show_click = paddle.concat([paddle.ones_like(click), click], axis=1)
        pooled = [paddlebox.ops.continuous_value_model(row, show_click) for row in rows]
        logits = paddle.nn.Linear(2 * 7, 1)(paddle.concat(pooled, axis=1))
        loss = paddlebox.nn.log_loss(logits, click)
        paddle.optimizer.Adam(0.01).minimize(loss)
        return user, item, click, logits, loss

startup = paddle.static.Program()
join_program, update_program = paddle.static.Program(), paddle.static.Program()
*_, join_logits, join_loss = built(join_program)
user, item, click, click_logits, update_loss = built(update_program)
exe.run(startup)
program, loss, logits = update_program, update_loss, click_logits
with paddle.static.program_guard(join_program, startup):
    join_ctr = paddle.nn.functional.sigmoid(join_logits)
with paddle.static.program_guard(program, startup):
    buy_probability = paddle.nn.functional.sigmoid(click_logits)
"""


# The example of operators.md: B = 2, S = 2, D = 5.
LISTS = """
paddle.disable_static()
from paddlebox import ops
values, offsets = paddle.ones([4, 5]), paddle.to_tensor([0, 2, 3, 3, 4], "int32")
values_0, offsets_0 = paddle.ones([2, 5]), paddle.to_tensor([0, 2, 2], "int32")
values_1, offsets_1 = paddle.ones([2, 5]), paddle.to_tensor([0, 1, 2], "int32")
cvm = paddle.ones([2, 2])
"""


def programs(name: str) -> list[str]:
    text = (ROOT / "docs" / name).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.slow
def test_the_programs_of_pages_on_datasets_metrics_and_operators_run(
    tmp_path: Path,
) -> None:
    one_pass, two_phases = programs("dataset.md")
    (with_words,) = programs("side_tables.md")
    (with_metrics,) = programs("metrics.md")
    (with_lists,) = programs("operators.md")
    of_paddlebox, wrapped, dumped, by_user = programs("upstream_names.md")
    parts = [
        PREAMBLE,
        one_pass,
        "table.wait_commit(); assert table.head.version == 1",
        with_words,
        "dataset.release_memory()",
        "write('pages', True, 300); dataset.set_filelist(['pages'])",
        two_phases,
        "dataset.set_parse_logkey(True); dataset.load_into_memory(); dataset.begin_pass()",
        with_metrics,
        "dataset.end_pass()",
        "print(sorted(result.metrics['pages']), result.metrics['buy']['size'])",
        of_paddlebox,
        "dataset.init(slots='slots.yaml', use_var=[user, item, click], batch_size=64)",
        "dataset.set_filelist(['part-0']); dataset.load_into_memory(); dataset.begin_pass()",
        wrapped,
        dumped,
        "assert len(open('dump/part-00-00000-00000').readlines()) == 600",
        "dataset.end_pass()",
        by_user,
        "table.close()",
        LISTS,
        with_lists,
        "assert paddle.concat(outs, axis=1).numpy().tolist() == out.numpy().tolist()",
    ]
    (tmp_path / "program.py").write_text("\n".join(parts))
    said = call(tmp_path, "python program.py")
    measured, joined = said.splitlines()
    assert measured == "['groups', 'size', 'uauc', 'wuauc'] 300"
    assert json.loads(joined)[7] == 600


def pieces() -> Iterator[tuple[str, Any]]:
    """Each fenced or indented block of YAML of a page, read."""
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        blocks += map(textwrap.dedent, re.findall(r"(?:^    .*\n)+", prose, re.M))
        for block in blocks:
            try:
                yield page.name, yaml.safe_load(block)
            except yaml.YAMLError:
                known = re.match(rf"({'|'.join(SECTIONS)}|slots):", block)
                assert not known, f"{page.name}: {block}"


def test_each_piece_of_a_config_is_valid() -> None:
    configs: dict[str, Any] = {}
    for page, piece in pieces():
        if isinstance(piece, dict) and piece.keys() <= SECTIONS:
            whole = {"name": "docs", **configs.get(page, {}), **piece}
            whole["data"] = {**DATA, **whole.get("data", {})}
            if whole["data"].keys() & {"path_template", "stream"}:
                whole["data"].pop("train_files")
            if "phases" not in whole:
                whole.setdefault("model", {"type": "dnn"})
            Config.model_validate(whole)
            configs[page] = whole  # later pieces of the page change it
    assert configs.keys() >= {"first_hour.md", "hours.md", "metrics.md", "phases.md"}


def test_each_piece_of_slots_is_valid() -> None:
    seen = set()
    for page, piece in pieces():
        slots = {"slots": piece} if isinstance(piece, list) else piece
        if isinstance(slots, dict) and slots.keys() & {"slots", "csv", "tags"}:
            if isinstance(piece, list):  # a part of the list, without its label
                slots = {"slots": [SOME_SLOTS[0], *piece]}
            Slots.model_validate({"slots": SOME_SLOTS, **slots})
            seen.add(page)
    assert seen >= {"README.md", "first_hour.md", "data.md", "static_program.md"}
