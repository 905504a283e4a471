"""Which Paddle is accepted, and that a refusal is an ImportError that says what to run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paddlebox import _paddle_version
from paddlebox._paddle_version import REBUILD, PaddleBuild, is_supported, parse, problem
from tests.support import processes

BUILT = PaddleBuild("3.3.1", "7688495538f4", "False")
GPU = PaddleBuild("3.3.1", "7688495538f4", "12.6")


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("3.3.1", (3, 3, 1)), ("3.10.0", (3, 10, 0)), ("3.3.0rc1", (3, 3, 0)), ("3.3", (3, 3))],
)
def test_a_version_is_read_as_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert parse(version) == numbers


def test_a_version_without_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected numbers"):
        parse("develop")


@pytest.mark.parametrize("version", ["3.3.0", "3.3.1", "3.3.12", "3.3.1.post118"])
def test_every_release_of_the_series_is_supported(version: str) -> None:
    assert is_supported(version)


@pytest.mark.parametrize("version", ["3.30.0", "3.2.9", "3.4.0", "33.3.1", "2.6.2", "0.0.0", "dev"])
def test_versions_that_only_look_alike_as_text_are_refused(version: str) -> None:
    assert not is_supported(version)


def test_the_recorded_build_is_accepted() -> None:
    assert problem(BUILT, BUILT) is None


@pytest.mark.parametrize(
    ("found", "recorded", "said"),
    [
        (PaddleBuild("3.2.2", "a", "False"), BUILT, "supports Paddle 3.3.x, found 3.2.2"),
        (PaddleBuild("3.3.0", "b", "False"), BUILT, "made for Paddle 3.3.1"),
        (PaddleBuild("3.3.1", "b", "False"), BUILT, "found Paddle 3.3.1 (commit b"),
        (PaddleBuild("3.3.1", "7688495538f4", "12.6"), BUILT, "CUDA 12.6"),
        (BUILT, None, "has not been built"),
    ],
)
def test_another_build_is_refused_with_the_rebuild_command(
    found: PaddleBuild, recorded: PaddleBuild | None, said: str
) -> None:
    message = problem(found, recorded)
    assert message is not None
    assert said in message
    assert REBUILD in message


@pytest.fixture
def from_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paddle_version, "is_wheel", lambda: True)


@pytest.mark.parametrize(
    ("found", "recorded", "command"),
    [
        (PaddleBuild("3.3.0", "b", "False"), BUILT, "pip install paddlepaddle==3.3.1"),
        (PaddleBuild("3.2.2", "b", "False"), BUILT, "pip install paddlepaddle==3.3.1"),
        (PaddleBuild("3.3.0", "b", "12.6"), GPU, "pip install paddlepaddle-gpu==3.3.1"),
        (
            PaddleBuild("3.3.1", "b", "False"),
            BUILT,
            "pip install --force-reinstall --no-deps paddlepaddle==3.3.1",
        ),
    ],
)
def test_a_wheel_names_the_paddle_that_it_was_made_for(
    from_a_wheel: None, found: PaddleBuild, recorded: PaddleBuild, command: str
) -> None:
    assert problem(found, recorded) == (
        f"This wheel of paddlebox was made for Paddle {recorded}, found Paddle {found}: "
        f"run `{command}`"
    )


def test_a_wheel_for_cpus_under_a_paddle_for_gpus_says_how_to_change_either(
    from_a_wheel: None,
) -> None:
    message = problem(GPU, BUILT)
    assert message is not None
    assert "run `pip uninstall --yes paddlepaddle-gpu`, then `pip install" in message
    assert (
        f"To keep paddlepaddle-gpu, build paddlebox for it: in its source folder, `{REBUILD}`"
        in message
    )


def test_a_wheel_without_paddle_names_the_paddle_that_it_was_made_for(from_a_wheel: None) -> None:
    message = _paddle_version.absent(BUILT)
    assert message.endswith("found none. This wheel of paddlebox was made for Paddle 3.3.1 (commit "
        "7688495538, CUDA False): run `pip install paddlepaddle==3.3.1`")  # fmt: skip


@pytest.mark.parametrize(
    ("origin", "wheel"),
    [
        (None, True),  # pip has chosen the file in an index or a folder
        ({"url": "file:///dist/paddlebox.whl", "archive_info": {}}, True),
        ({"url": "file:///paddlebox", "dir_info": {}}, False),
        ({"url": "https://host/paddlebox", "vcs_info": {"vcs": "git"}}, False),
    ],
)
def test_what_pip_installed_tells_a_wheel_from_a_source_folder(
    tmp_path: Path, origin: dict[str, Any] | None, wheel: bool
) -> None:
    (tmp_path / "paddlebox").mkdir()
    shutil.copy(_paddle_version.__file__, tmp_path / "paddlebox")
    information = tmp_path / "paddlebox-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: paddlebox\nVersion: 0.1.0\n"
    )
    if origin is not None:
        (information / "direct_url.json").write_text(json.dumps(origin))
    program = "import _paddle_version; print(_paddle_version.is_wheel())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": f"{tmp_path / 'paddlebox'}:{tmp_path}"},
    )  # fmt: skip
    assert done.stdout.strip() == str(wheel)


def test_the_source_folder_is_not_a_wheel() -> None:
    assert not _paddle_version.is_wheel()


def import_error(setup: str, *, fresh: bool = False) -> str:
    """The message of the ImportError of an interpreter that has imported Paddle, but not the
    package, after `setup`. A fresh one has not imported Paddle."""
    program = textwrap.dedent(
        f"""
        import sys, warnings
        for name in [name for name in sys.modules if name.partition(".")[0] == "paddlebox"]:
            del sys.modules[name]
        exec({textwrap.dedent(setup)!r})
        warnings.simplefilter("error")  # the package may not warn on the way either
        try:
            import paddlebox._native
        except ImportError as error:
            print(error)
        else:
            print("loaded")
        """
    )
    if fresh:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    else:
        done = processes.run(["-c", program])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_an_absent_paddle_is_an_import_error_with_the_commands() -> None:
    message = import_error(
        """
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "paddle":
                    raise ModuleNotFoundError("No module named 'paddle'", name="paddle")
        sys.meta_path.insert(0, Absent())
        """,
        fresh=True,
    )
    assert message == _paddle_version.absent()


def test_a_system_without_libgomp_is_an_import_error_with_the_commands() -> None:
    said = "libgomp.so.1: cannot open shared object file: No such file or directory"
    message = import_error(
        f"""
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "paddle":
                    raise ImportError({said!r})
        sys.meta_path.insert(0, Broken())
        """,
        fresh=True,
    )
    assert message.startswith(f"{said}: Paddle needs this library of GCC")
    assert "apt-get install libgomp1" in message


def test_an_unsupported_paddle_is_refused_before_the_library_is_opened() -> None:
    message = import_error(
        """
        import paddle.version
        paddle.version.full_version = "3.30.0"
        sys.modules["paddlebox._ops"] = None  # opening it would raise another ImportError
        """
    )
    assert message == _paddle_version.unsupported("3.30.0")


def test_a_library_built_for_another_paddle_is_refused() -> None:
    message = import_error(
        """
        import types
        info = types.ModuleType("paddlebox._build_info")
        info.PADDLE_VERSION, info.PADDLE_COMMIT, info.PADDLE_CUDA = "3.3.0", "0123456789ab", "12.6"
        sys.modules["paddlebox._build_info"] = info
        """
    )
    assert "was made for Paddle 3.3.0 (commit 0123456789, CUDA 12.6)" in message
    assert REBUILD in message


def test_a_library_that_was_not_built_names_the_command() -> None:
    message = import_error('sys.modules["paddlebox._ops"] = None')
    assert message == _paddle_version.not_built()


def test_the_library_that_is_installed_loads_without_a_warning() -> None:
    assert import_error("", fresh=True) == "loaded"
