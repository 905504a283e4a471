"""Nothing that paddlebox writes is a pickle, nothing in it reads one; a run dir is its owner's."""

from __future__ import annotations

import ast
import io
import pickle
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest

from tests.golden.make_run import CONFIG, SLOTS, write_data
from tests.golden.test_golden import tool

ROOT = Path(__file__).parents[2]
MODULES = sorted([*(ROOT / "paddlebox").rglob("*.py"), *(ROOT / "tools").glob("*.py")])
UNSAFE_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
}
# Calls that read pickles or run text. yaml.load is with a loader of plain YAML (test below).
UNSAFE_CALLS = {
    "paddle.load", "paddle.save", "paddle.static.load", "paddle.static.save", "paddle.jit.load",
    "paddle.jit.save", "torch.load", "torch.save", "np.load", "numpy.load", "eval", "exec",
    "os.system", "os.popen",
}  # fmt: skip


def unsafe_in(source: str) -> list[str]:
    """What a module imports or calls that it must not."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            plain = keywords.pop("allow_pickle", "") == "False"
            # Of tensors only; other pickles are refused (tests/tools/rows/test_other_systems.py).
            plain |= name == "torch.load" and keywords.pop("weights_only", "") == "True"
            if (name in UNSAFE_CALLS and not plain) or keywords.get("shell", "False") != "False":
                found.append(name)
            continue
        else:
            continue
        found += [name for name in names if name.split(".")[0] in UNSAFE_MODULES]
    return found


def test_no_module_reads_a_pickle_or_runs_text() -> None:
    assert len(MODULES) > 100
    found = {str(p.relative_to(ROOT)): unsafe_in(p.read_text()) for p in MODULES}
    # The shell of data.pipe_command, behind security.allow_commands.
    assert {path: names for path, names in found.items() if names} == {
        "paddlebox/data/pipe.py": ["subprocess.Popen"]
    }


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os, dill.x",
        "def f():\n    import marshal as m",
        "paddle.load('x')",
        "np.load('x', mmap_mode='r')",
        "np.load('x', allow_pickle=True)",
        "torch.load('x', weights_only=False)",
        "np.load('x', weights_only=True)",
        "subprocess.run('ls', shell=True)",
        "eval('1')",
    ],
)
def test_the_look_at_modules_finds(source: str) -> None:
    assert len(unsafe_in(source)) == 1


def is_pickle(data: bytes) -> bool:
    """Whether the whole of it is one pickle: a value's checksum may well begin like a short one."""
    try:
        *_, (_, _, end) = pickletools.genops(io.BytesIO(data))
    except Exception:
        return False
    return end == len(data) - 1


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, and every value of those that are LMDB's, with and without its checksum."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        yield str(path), path.read_bytes()
        if path.name in ("data.mdb", "model"):
            with (
                lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env,
                env.begin() as txn,
            ):
                for key, value in txn.cursor():
                    yield f"{path} {bytes(key)!r}", bytes(value)
                    yield f"{path} {bytes(key)!r} sealed", bytes(value)[4:]


def test_a_pickle_would_be_found() -> None:
    for value in ({"w": np.ones(3)}, [1, "a"], None):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert is_pickle(pickle.dumps(value, protocol))
    assert not is_pickle(b'{"version": 1}')
    assert not is_pickle(b"N.\x07\x10 a sealed value")


@pytest.mark.slow
def test_a_run_its_saves_copies_and_export_hold_no_pickle_and_the_run_dir_is_private(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "slots.yaml").write_text(SLOTS)
    write_data(tmp_path)
    settings = ["save.out=saves", "save.delta_every=1"]
    words = ["-c", "config.yaml", "--run-dir", "run", "-o", *settings, "checkpoint.copy_to=copies"]
    tool(tmp_path, "train", *words)
    tool(tmp_path, "export", "run", "--out", "model")
    tool(tmp_path, "store", "restore", "copies", "restored")
    found = dict(contents(tmp_path))
    for part in ("dense.bin", "MANIFEST-", "meta.json", "model b'", "copies/data/"):
        assert any(part in name for name in found), part
    assert [name for name, data in found.items() if is_pickle(data)] == []
    for made in ("run", "restored"):
        assert (tmp_path / made).stat().st_mode & 0o777 == 0o700


def test_the_page_names_every_variable_that_is_read() -> None:
    page = (ROOT / "docs/security.md").read_text()
    read = set()
    for path in MODULES:
        text = path.read_text()
        read |= set(re.findall(r"environ(?:\.get\(|\[)\s*\"(\w+)\"", text))
        read |= set(re.findall(r"\"((?:PADDLE|PADDLEBOX)_[A-Z_]+)\"", text))
    assert {"PADDLE_TRAINERS_NUM", "PADDLEBOX_HBM_DEVICE"} <= read
    assert {name for name in read if name not in page} == set()


def test_the_tests_that_the_page_names_are_there() -> None:
    page = (ROOT / "docs/security.md").read_text()
    named = set(re.findall(r"`(\w+/test_\w+\.py)`", page))
    assert "e2e/test_exposure.py" in named
    assert {name for name in named if not (ROOT / "tests" / name).is_file()} == set()
