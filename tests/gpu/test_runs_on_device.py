"""Runs on the device of the stock Paddle wheel: they repeat, resume, continue on the host, and end
with an error where the device cannot do what the config asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlebox._native import core
from tests.conftest import make_synthetic
from tests.support.marks import long
from tests.support.processes import ROOT, whole_environment

SCRIPT = (ROOT / "tests/training/resume_small.py").read_text()
ZOO = (Path(__file__).parent / "zoo_on_device.py").read_text()
GPU, BFLOAT16 = "hbm.place=gpu", "trainer.dense_dtype=bfloat16"
DIGESTS = ("sparse_digest", "dense_digest")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=3, rows=1000, test_rows=1000)


@pytest.fixture
def train(in_new_process: Any, device: dict[str, str], data: Path, tmp_path: Path) -> Any:
    def run(name: str, *overrides: str, late: bool = False, **options: Any) -> Any:
        base = [f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]"]
        base += ["model.hidden=[16,16]", "data.batch_size=256", "trainer.dense_threads=1"]
        base += ["table.embedx_threshold=1.0", "mem.budget_bytes=1MiB", "data.threads=2"]
        base += ["trainer.evaluate_passes=after", "model.click_prior=true"]
        arguments = {"folder": str(tmp_path / name), "overrides": [*base, *overrides], **options}
        env = device if GPU in overrides else {"OMP_NUM_THREADS": "1"}
        env = {**env, "PADDLEBOX_DEVICE_LATE": str(int(late))}
        return in_new_process(SCRIPT, json.dumps(arguments), env=env)

    return run


def _digests(run: dict[str, Any]) -> list[str]:
    assert run["error"] == ""
    return [run["summary"][name] for name in DIGESTS]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["trainer.program=pir", long("trainer.program=dygraph"), BFLOAT16])
def test_a_run_resumes_to_the_bit_and_predicts_as_on_the_host(
    train: Callable[..., Any], mode: str
) -> None:
    unbroken = train("unbroken", GPU, mode)
    # The device of these works as late as a GPU may.
    assert train("resumed", GPU, mode, late=True, fail_in=2)["error"].startswith("BrokenOff")
    assert _digests(train("resumed", GPU, mode, late=True)) == _digests(unbroken)
    if mode == BFLOAT16 and core.dense_library()[2]["bfloat16"] == "none":
        pytest.skip("resumes to the bit; the processor has no AVX512_BF16 to compare with")
    host = train("host", mode)
    assert unbroken["tests"] == pytest.approx(host["tests"], abs=1e-4)  # AUC
    losses = [[line[1] for line in run["lines"]] for run in (unbroken, host)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.long
def test_a_store_is_continued_on_the_host_and_on_the_device_in_turn(
    train: Callable[..., Any],
) -> None:
    host = train("host")
    assert train("moved", fail_in=2)["error"].startswith("BrokenOff")
    assert train("moved", GPU, fail_in=3)["error"].startswith("BrokenOff")
    moved = train("moved")
    assert moved["error"] == ""
    assert moved["tests"][-1] == pytest.approx(host["tests"][-1], abs=1e-4)  # AUC


def _refusal(device: dict[str, str], *arguments: str) -> str:
    """The last line that a program prints which must end with an error."""
    command = [sys.executable, "-c", *arguments]
    env = whole_environment(device)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr[-2000:]
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_an_operator_without_a_kernel_for_its_dtype_is_refused_by_name(
    device: dict[str, str],
) -> None:
    code = (
        "from paddlebox.training.device_kernels import check_kernels, paddle\n"
        "paddle.enable_static()\n"
        "program = paddle.static.Program()\n"
        "with paddle.static.program_guard(program):\n"
        "    x = paddle.static.data('x', [-1, 2], 'float32')\n"
        "    paddle.erf(paddle.nn.functional.relu(x))\n"
        "    paddle.nn.functional.relu(paddle.concat([paddle.cast(x, 'float64')]))\n"
        "check_kernels('mine', [program])\n"
    )
    expected = (
        "operators without a kernel for the GPU: pd_op.erf of float32, pd_op.relu of float64;"
    )
    assert expected in _refusal(device, code)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["exe", "Measuring(exe, {}, print)"], ids=["own", "box"])
def test_an_optimizer_without_a_kernel_is_refused_in_a_program_of_ones_own(
    device: dict[str, str], executor: str
) -> None:
    code = (
        "import paddlebox\n"
        "from paddlebox.compat.box_metrics import Measuring\n"
        "from paddlebox.training.device_kernels import paddle\n"
        "paddle.enable_static()\n"
        "loss = paddle.nn.Linear(2, 1)(paddle.static.data('x', [-1, 2], 'float32')).mean()\n"
        "paddle.optimizer.Momentum(0.1).minimize(loss)\n"
        "exe = paddle.static.Executor(paddle.CustomPlace('paddlebox_gpu', 0))\n"
        "program = paddle.static.default_main_program()\n"
        f"paddlebox.train_from_dataset({executor}, program, None, loss=loss)\n"
    )
    expected = "the program has operators without a kernel for the GPU: pd_op.momentum_ of float32;"
    assert expected in _refusal(device, code)


@pytest.mark.slow
def test_dygraph_computes_on_the_device_or_refuses_by_name(
    in_new_process: Callable[..., Any], device: dict[str, str]
) -> None:
    code = (
        "import json\n"
        "from paddlebox._native import paddle\n"
        "from paddlebox.api.process import working\n"
        "from paddlebox.errors import ConfigError\n"
        "from paddlebox.training.device_kernels import refused_in_dygraph\n"
        "from paddlebox.training.runner import build_runner\n"
        "from tests.support.configs import make_config, make_slots\n"
        "config = make_config(hbm={'place': 'gpu'}, trainer={'program': 'dygraph'})\n"
        "found = {'before': paddle.get_device()}\n"
        "with working(config):\n"
        "    runner = build_runner(config, make_slots(click='label', s='sparse'))\n"
        "    found['place'] = str(runner.program._model.parameters()[0].place)\n"
        "    try:\n"
        "        with refused_in_dygraph('mine'):\n"
        "            paddle.erf(paddle.ones([2]))\n"
        "    except ConfigError as error:\n"
        "        found['error'] = str(error)\n"
        "flags = paddle.get_flags('FLAGS_enable_api_kernel_fallback')\n"
        "print(json.dumps({**found, **flags, 'after': paddle.get_device()}))\n"
    )
    found = in_new_process(code, env=device)
    assert found["place"] == "Place(paddlebox_gpu:0)"
    assert "mine has operators without a kernel for the GPU: erf of" in found["error"]
    assert found["before"] == found["after"] == "cpu"
    assert found["FLAGS_enable_api_kernel_fallback"] is True
