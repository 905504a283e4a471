"""Which Paddle is accepted, and that a refusal is an ImportError that says what to run."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from paddlebox import _paddle_version
from paddlebox._paddle_version import REBUILD, PaddleBuild, is_supported, parse, problem
from tests.support import processes

BUILT = PaddleBuild("3.3.1", "7688495538f4", "False")


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
