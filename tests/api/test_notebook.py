"""The notebook of the docs runs in a new process, as in a kernel, and prints nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Runs cells one after the other, and shows the value of the last line of each.
KERNEL = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.loads(sys.argv[1]):
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        sys.displayhook(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
"""
AFTERWARDS = """
import logging, os, paddle
print(json.dumps({
    "auc": evaluation["auc"], "passes": len(run.history), "version": run.version,
    "handlers": len(logging.root.handlers), "dynamic": paddle.in_dynamic_mode(),
}))
"""


@pytest.mark.slow
def test_the_notebook_trains_once_and_shows_only_the_log(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    cells = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    assert len(cells) >= 6
    cells.append("import json" + AFTERWARDS)
    outs, logs = [], []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", KERNEL, json.dumps(cells)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outs.append(json.loads(done.stdout.splitlines()[-1]))
        logs.append(done.stderr.splitlines())
    expected = {"passes": 2, "version": 2, "handlers": 0, "dynamic": True}
    assert outs[0] == {**expected, "auc": outs[0]["auc"]}
    assert outs[0]["auc"] > 0.8
    assert outs[1] == outs[0]  # the second time, nothing is trained
    for line in [*logs[0], *logs[1]]:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) ", line), line
    passes = [line for line in logs[0] if re.search(r" INFO pass \d/\d: ", line)]
    assert len(passes) == 2  # each line once
    assert sum("nothing new to train" in line for line in logs[1]) == 2
