"""The bundle for a GPU machine without network has what training needs, in parts that fit."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.ci.scripts import load

bundle = load("gpu_bundle")


def compiled(library: Path, source: str, *links: Path) -> Path:
    library.parent.mkdir(parents=True, exist_ok=True)
    options = ("-g", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-xc", "-")
    command: list[str | Path] = ["gcc", *options, "-xnone", *links, "-o", library]
    subprocess.run(command, input=source, text=True, check=True)
    return library


@pytest.fixture
def paddle(tmp_path: Path) -> Path:
    folder = tmp_path / "paddle"
    for name in (
        *("__init__.py", "include/paddle/a.h", "nn/__pycache__/a.pyc", "libs/libphi_core.so"),
        *("libs/liblapack.so.3", "libs/libopenvino_intel_cpu_plugin.so"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    one, two, pid = "int _ZN3tbb3oneEv(void)", "int _ZN3tbb3twoEv(void)", "int getpid(void)"
    of_tbb = "".join(f"{function} {{ return 1; }}\n" for function in (one, two, pid))
    tbb = compiled(folder / "libs/libtbb.so.12", of_tbb)
    source = f"{one}; {pid}; int (*address)(void) = _ZN3tbb3oneEv; int (*other)(void) = getpid;"
    compiled(folder / "base/libpaddle.so", source, tbb)
    return folder


def test_each_file_of_paddle_that_training_needs_is_in_one_part(
    paddle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "OUT", tmp_path)
    parts = {part: dict(bundle.paddle_files(paddle, part)) for part in bundle.PARTS}
    assert {part: [*files] for part, files in parts.items()} == {
        "1": ["site/paddle/base/libpaddle.so"],
        "2": [
            "site/paddle/__init__.py",
            "site/paddle/libs/libphi_core.so",
            "site/paddle/libs/libtbb.so.12",
        ],
    }
    tbb, own = parts["2"]["site/paddle/libs/libtbb.so.12"], paddle / "base/libpaddle.so"
    defined = bundle.run("nm", "-D", "--defined-only", tbb)
    assert [line.split()[-1] for line in defined.splitlines()] == ["_ZN3tbb3oneEv"]
    shutil.copy(tbb, paddle / "libs/libtbb.so.12")
    loads = f"import ctypes; ctypes.CDLL('{paddle}/libs/libtbb.so.12'); ctypes.CDLL('{own}')"
    subprocess.run([sys.executable, "-c", loads], check=True)


def test_an_archive_unpacks_to_what_was_packed_with_libraries_stripped(tmp_path: Path) -> None:
    library, text = tmp_path / "libone.so", tmp_path / "one.py"
    text.write_text("x = 1\n")
    source = "int one(void) { return 1; } static int two; int *three(void) { return &two; }"
    compiled(library, source)
    archive = tmp_path / "out/1/a.tar.xz"
    bundle.pack(archive, [("site/libone.so", library), ("site/one.py", text)])
    assert [path.name for path in archive.parent.iterdir()] == ["a.tar.xz"]
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "got", filter="data")
    assert (tmp_path / "got/site/one.py").read_text() == "x = 1\n"
    assert (tmp_path / "got/site/libone.so").stat().st_size < library.stat().st_size
    loads = f"import ctypes; assert ctypes.CDLL('{tmp_path}/got/site/libone.so').one() == 1"
    subprocess.run([sys.executable, "-c", loads], check=True)


def test_a_part_over_the_limit_ends_with_the_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, size in (("1", 70), ("2", 100)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.tar.xz").write_bytes(b"x" * size)
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 100)
    bundle.check_sizes(tmp_path)
    (tmp_path / "2/b.tar.xz").write_bytes(b"x")
    with pytest.raises(SystemExit, match="part 2 is over"):
        bundle.check_sizes(tmp_path)
    assert "part 1" in capsys.readouterr().out


def test_of_a_wheel_only_what_a_build_writes_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in ("_ops.so", "_build_info.py", "_call.py", "_gpu/libpaddlebox_gpu.so", "run.py"):
            wheel.writestr(f"paddlebox/{name}", name)
    bundle.built(tmp_path / "a.whl", tmp_path / "tree")
    found = sorted(path.name for path in (tmp_path / "tree").rglob("*") if path.is_file())
    assert found == ["_build_info.py", "_ops.so", "libpaddlebox_gpu.so"]


def test_a_wheel_without_the_library_of_the_gpu_is_an_error(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("paddlebox/_ops.so", "")
    with pytest.raises(SystemExit, match="lacks _build_info, libpaddlebox_gpu: run `make gpu`"):
        bundle.built(tmp_path / "a.whl", tmp_path / "tree")


def test_packages_are_pinned() -> None:
    pins = {line.partition("==")[0].lower() for line in bundle.wheels.PINS.read_text().splitlines()}
    assert {name.lower() for name in bundle.PACKAGES} <= pins
