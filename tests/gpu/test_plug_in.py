"""The library of the device: how Paddle finds it, and what happens without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paddlebox._native import sources
from paddlebox.config import HbmPlace
from paddlebox.launch import gpu
from paddlebox.store import cublas
from paddlebox.store.options import LIBRARY
from tests.support.processes import ROOT, whole_environment


def test_a_run_names_the_folder_of_the_library_unless_the_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "FOLDER", tmp_path / "_gpu")
    env: dict[str, str] = {}
    gpu.offer(HbmPlace.GPU, env)
    assert env == {}  # the library is not built
    gpu.FOLDER.mkdir()
    gpu.offer(HbmPlace.HOST, env)
    assert env == {}
    for found in ({}, {gpu.ROOT: ""}):
        env = {**found}
        gpu.offer(HbmPlace.GPU, env)
        assert env == {gpu.ROOT: str(gpu.FOLDER)}
    env = {gpu.ROOT: "mine"}
    gpu.offer(HbmPlace.GPU, env)
    assert env == {gpu.ROOT: "mine"}


def test_cublas_of_a_package_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cublas.load():
        pytest.skip("the loader finds a cuBLAS of this machine")
    folder = tmp_path / "nvidia/cu13/lib"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    for broken in ("libcublas.so.12", "libcublas.so.13"):
        (folder / broken).touch()
    assert [path.name for path in cublas.packaged()] == ["libcublas.so.13", "libcublas.so.12"]
    assert not cublas.load()
    name = "libcublas.so.12"
    command = [
        "gcc",
        "-shared",
        "-o",
        str(folder / name),
        f"-Wl,-soname,{name}",
        "-xc",
        "/dev/null",
    ]
    subprocess.run(command, check=True)
    assert cublas.load()
    assert ctypes.CDLL(name)  # as the library asks for it


def nvcc() -> list[str]:
    """The nvcc that `make gpu` takes, as arguments of make. Skips the test if there is none."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is not None:
        return [f"NVCC={found}"]
    for root in sorted(ROOT.glob(".venv-cuda/lib/python3*/site-packages/nvidia/cu13")):
        return [f"NVCC={root}/bin/nvcc", f"NVCC_FLAGS=-I{root}/include/cccl"]
    pytest.skip("no nvcc on PATH, and none in .venv-cuda, which `make cuda-setup` makes")


@pytest.mark.long
def test_the_library_links_and_without_a_gpu_paddle_goes_on(
    tmp_path: Path, paddle_folder: Path
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    arguments = ["ARCH=90", f"PADDLE={paddle_folder}", f"OUT={tmp_path}", *nvcc()]
    made = subprocess.run(
        ["make", "-C", "ops/gpu", "-j2", "cuda", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-4000:]
    code = (
        "from paddlebox._native import paddle\n"
        "from paddlebox.config import HbmPlace\n"
        "from paddlebox.store.options import check_place\n"
        "print(paddle.device.get_all_custom_device_type(), paddle.ones([2]).tolist(), flush=True)\n"
        "check_place(HbmPlace.GPU)\n"
    )
    env = whole_environment({"CUSTOM_DEVICE_ROOT": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[] [1.0, 1.0]", done.stderr[-2000:]
    assert "ConfigError: hbm.place is gpu: " in done.stderr
    assert "found no GPU: " in done.stderr


def test_a_library_of_other_sources_is_refused(device: dict[str, str], tmp_path: Path) -> None:
    own = sources().encode()
    library = (Path(device["CUSTOM_DEVICE_ROOT"]) / LIBRARY).read_bytes()
    assert library.count(own) == 1
    (tmp_path / LIBRARY).write_bytes(library.replace(own, b"0" * len(own)))
    code = (
        "from paddlebox.config import HbmPlace\n"
        "from paddlebox.store.options import check_place\n"
        "check_place(HbmPlace.GPU)\n"
    )
    env = whole_environment({**device, "CUSTOM_DEVICE_ROOT": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert "ConfigError: hbm.place is gpu: " in done.stderr
    assert f"expected a library of the sources {sources()}, found 000000000000" in done.stderr


def test_a_table_of_ones_own_program_finds_the_device(device: dict[str, str]) -> None:
    code = (
        "import paddlebox\n"
        "from paddlebox.config import HbmPlace, TableConfig\n"
        "from paddlebox.store.options import is_plugged_in\n"
        "paddlebox.Table(TableConfig(embedx_dim=8), hbm_place=HbmPlace.GPU).close()\n"
        "print(is_plugged_in())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=whole_environment(device),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n", done.stderr[-2000:]
