"""The package as its users meet it: light to import, one version, pins that agree."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import paddlebox

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_package_or_its_config_imports_no_paddle() -> None:
    program = (
        "import sys, paddlebox, paddlebox.config, paddlebox.errors; "
        "sys.exit(any(name.partition('.')[0] == 'paddle' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_every_public_name_is_there() -> None:
    for name in paddlebox.__all__:
        assert getattr(paddlebox, name) is not None
        assert name in dir(paddlebox)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'paddlebox' has no attribute 'Tabel'"):
        getattr(paddlebox, "Tabel")  # noqa: B009  # mypy knows that it is not there


def test_the_installed_version_is_the_package_version() -> None:
    assert metadata.version("paddlebox") == paddlebox.__version__


def test_paddle_is_not_among_the_requirements() -> None:
    requirements = metadata.requires("paddlebox") or []
    assert requirements
    assert not any(requirement.startswith("paddle") for requirement in requirements)


def test_the_pins_of_the_extras_are_those_of_the_development_environment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements/dev.txt").read_text(), re.M)
    )
    for extra in ("dev", "bench"):
        for requirement in project["optional-dependencies"][extra]:
            name, _, version = requirement.partition("==")
            assert pinned[name] == version, requirement
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["serve"], *extras["tune"]]:
        assert re.split(r"[<>=~]", requirement)[0] in pinned, requirement


def test_a_build_without_the_package_wheel_says_what_to_install() -> None:
    absent = ("wheel", "setuptools.command.bdist_wheel")
    program = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({absent})); "
        "sys.argv = ['setup.py', 'dist_info']; runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("building paddlebox needs the package wheel")
    assert "pip install wheel" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("system", "machine", "libc", "found"),
    [
        ("linux", "aarch64", "glibc", "Linux on aarch64."),
        ("darwin", "arm64", "", "Darwin on arm64."),
        ("linux", "x86_64", "", "Linux on x86_64 without glibc."),
    ],
)
def test_a_build_on_another_platform_is_one_error(
    system: str, machine: str, libc: str, found: str
) -> None:
    program = (
        "import platform, runpy, sys; "
        f"sys.platform = {system!r}; platform.system = lambda: {system.capitalize()!r}; "
        f"platform.machine = lambda: {machine!r}; platform.libc_ver = lambda: ({libc!r}, ''); "
        "sys.argv = ['setup.py', 'egg_info']; runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"paddlebox needs Linux on x86-64 with glibc, as Paddle does: found {found}"
    )


def test_the_library_needs_no_newer_libstdcxx_than_the_systems_that_the_docs_name() -> None:
    """Of GCC 11, in RHEL 9. ops/base/condition_wait.cc keeps it so."""
    library = importlib.import_module("paddlebox._native").core.__file__
    assert b"GLIBCXX_3.4.29" in Path(library).read_bytes()
    assert b"GLIBCXX_3.4.30" not in Path(library).read_bytes()


def test_the_image_and_the_wheels_are_made_for_the_pinned_paddle() -> None:
    (pinned,) = re.findall(
        r"^paddlepaddle==\S+$", (ROOT / "requirements/dev.txt").read_text(), re.M
    )
    for page in ("Dockerfile", "README.md", "docs/building.md"):
        assert set(re.findall(r"paddlepaddle==[\w.]+", (ROOT / page).read_text())) == {pinned}, page


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert re.search(
        rf"^## \[{re.escape(paddlebox.__version__)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_what_the_readme_says_of_python_is_what_the_package_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line]
    assert project["requires-python"] == f">={versions[0]}"
    readme = (ROOT / "README.md").read_text()
    assert f"Python {', '.join(versions[:-1])} and {versions[-1]}," in readme
