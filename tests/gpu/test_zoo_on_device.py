"""Models train on the device of the stock Paddle wheel as on the host. The device is the host here,
in memory that only kernels and copies may touch (docs/gpu.md)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.zoo import FEW, MODELS
from tests.support.marks import long
from tests.support.processes import ROOT, whole_environment

SCRIPT = (Path(__file__).parent / "zoo_on_device.py").read_text()
#: Kernels of these names compute no tensor: numbers and shapes that are arguments of others, and
#: what a program returns.
ON_THE_HOST = {"fetch", "full", "full_int_array"}
few_and_others = pytest.mark.parametrize(
    "names", [FEW, long([name for name in MODELS if name not in FEW])], ids=["few", "others"]
)


Run = Callable[[dict[str, Any], str], tuple[Any, str]]


@pytest.fixture(scope="module")
def run(device: dict[str, str]) -> Run:
    """Trains models on the device: run(models, program). Returns what the program prints at its
    end, and before it, which names the kernel of each operator."""
    env = whole_environment({**device, "FLAGS_print_ir": "1"})
    made: dict[str, tuple[Any, str]] = {}

    def train(models: dict[str, Any], program: str) -> tuple[Any, str]:
        arguments = [program, json.dumps(models), "6"]
        if str(arguments) not in made:
            command = [sys.executable, "-c", SCRIPT, "gpu", *arguments]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-4000:]
            before, _, last = done.stdout.strip().rpartition("\n")
            made[str(arguments)] = json.loads(last), before
        return made[str(arguments)]

    return train


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
@few_and_others
def test_models_train_as_on_the_host(
    in_new_process: Callable[..., Any],
    device: dict[str, str],
    run: Run,
    names: Sequence[str],
    program: str,
) -> None:
    models = {name: MODELS[name] for name in names}
    arguments = (program, json.dumps(models), "6")
    host = in_new_process(SCRIPT, "host", *arguments)
    found, _ = run(models, program)
    for name in models:
        for values in ("losses", "logits"):
            np.testing.assert_allclose(
                found[name][values], host[name][values], rtol=0, atol=1e-5, err_msg=name
            )
    if names is not FEW:  # a run that resumes to the bit shows it for fewer models
        assert in_new_process(SCRIPT, "gpu", *arguments, env=device) == found


@pytest.mark.slow
@few_and_others
def test_no_operator_runs_on_the_host(run: Run, names: Sequence[str]) -> None:
    _, printed = run({name: MODELS[name] for name in names}, "pir")
    lowered = r'kernel_key:<backend:(\w+)\|[^>]*>,kernel_name:"(\w+)".* -> (\S+)'
    found = re.findall(lowered, printed)
    assert {name for backend, name, _ in found if backend != "CPU"} >= {"add", "merged_adam"}
    on_host = {(name, result) for backend, name, result in found if backend == "CPU"}
    assert {name for name, _ in on_host} <= ON_THE_HOST
    assert {result[:13] for name, result in on_host if name == "full"} == {"cpu_tensor<1x"}


@pytest.mark.slow
def test_host_code_that_touches_a_tensor_of_the_device_ends(device: dict[str, str]) -> None:
    touch = (
        "import ctypes, numpy as np\n"
        "from paddlebox._native import paddle\n"
        "place = paddle.CustomPlace('paddlebox_gpu', 0)\n"
        "tensor = paddle.to_tensor(np.arange(4, dtype=np.float32), place=place)\n"
        "print(tensor.numpy().tolist(), flush=True)\n"
        "ctypes.string_at(tensor.data_ptr(), 4)\n"
        "print('read')\n"
    )
    env = whole_environment(device)
    done = subprocess.run([sys.executable, "-c", touch], cwd=ROOT, env=env, capture_output=True)
    assert done.stdout.split(b"\n")[:2] == [b"[0.0, 1.0, 2.0, 3.0]", b""]
    assert done.returncode == -11
