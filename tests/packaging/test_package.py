"""The package as its users meet it: light to import, one version, pins that agree."""

from __future__ import annotations

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
