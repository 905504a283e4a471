"""The sdist and the wheels, and what a user meets who installs one on a machine without a compiler.

`make test-wheels` builds them and sets PADDLEBOX_WHEELS to their folder. Packages are downloaded
before the clock starts, into build/wheels/downloads.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paddlebox import __version__
from tests.conftest import PATIENCE_S, ROOT
from tests.e2e.test_docs import program_of

FOLDER = os.environ.get("PADDLEBOX_WHEELS")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        FOLDER is None, reason="PADDLEBOX_WHEELS is not set: make test-wheels builds wheels first"
    ),
]
WHEELS = sorted((ROOT / (FOLDER or "dist")).glob(f"paddlebox-{__version__}-*.whl"))
DOWNLOADS = ROOT / "build" / "wheels" / "downloads"
PADDLE = "paddlepaddle==3.3.1"
TOOLS = ("sh", "seq")  # all that the README's example needs besides Python


def python_of(wheel: Path) -> str:
    tag = wheel.name.split("-")[2]  # cp311
    return f"{tag[2]}.{tag[3:]}"


def tracked(*paths: str) -> set[str]:
    listed = ["git", "ls-files", "-z", *paths]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(filter(None, done.stdout.split("\0")))


@dataclass
class Installed:
    """An environment into which a wheel was installed, with Paddle."""

    wheel: Path
    folder: Path
    install_s: float

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path, cwd: Path) -> str:
        done = subprocess.run(
            command, cwd=cwd, env=environment(self.folder), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def error_of_import(self, setup: str) -> str:
        """The message of the ImportError of the package after `setup`."""
        program = textwrap.dedent(setup) + textwrap.dedent(
            """
            try:
                import paddlebox._native
            except ImportError as error:
                print(error)
            """
        )
        return self.run(self.python, "-W", "ignore", "-c", program, cwd=self.folder).strip()


def environment(folder: Path) -> dict[str, str]:
    """Variables for programs: nothing of the project, and a PATH with neither compiler nor make."""
    tools = folder / "tools"
    return {"PATH": str(tools), "HOME": str(folder), "LANG": "C.UTF-8"}


def download(python: Path, wheel: Path, env: dict[str, str]) -> None:
    """Bring what the wheel needs into DOWNLOADS, in the pinned versions."""
    wanted, downloads = [PADDLE, f"{wheel}[serve]"], str(DOWNLOADS)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    there = ["install", "--dry-run", "--no-index", "--find-links", downloads, *wanted]
    if subprocess.run([*pip, *there], env=env, capture_output=True).returncode == 0:
        return
    pins = str(ROOT / "requirements" / "dev.txt")
    fetch = ["download", "--only-binary", ":all:", "-c", pins, "-d", downloads, *wanted]
    subprocess.run([*pip, *fetch], check=True)
    for copied in DOWNLOADS.glob("paddlebox-*"):
        copied.unlink()


@pytest.fixture(scope="module", params=WHEELS, ids=python_of)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    wheel: Path = request.param
    version = python_of(wheel)
    python = runpy.run_path(str(ROOT / ".ci" / "wheels.py"))["find"](version)
    folder = tmp_path_factory.mktemp(version)
    subprocess.run([python, "-m", "venv", folder], check=True)
    (folder / "tools").mkdir()
    for tool in TOOLS:
        (folder / "tools" / tool).symlink_to(shutil.which(tool) or "")
    env = environment(folder)
    own = folder / "bin" / "python"
    download(own, wheel, env)
    started = time.monotonic()
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [own, *install, "--find-links", DOWNLOADS, PADDLE, f"{wheel}[serve]"], check=True, env=env
    )
    yield Installed(wheel, folder, time.monotonic() - started)
    shutil.rmtree(folder)


def served(server: subprocess.Popen[bytes], log: Path, instance: dict[str, Any]) -> Any:
    """The answer of a server, which is starting, to a request of one prediction."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
        address = re.search(r"at http://127\.0\.0\.1:(\d+)", log.read_text())
        if address is None:
            continue
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=PATIENCE_S)
        body = json.dumps({"instances": [instance]})
        try:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        except ConnectionRefusedError:
            continue
        finally:
            connection.close()


def test_the_readmes_model_is_trained_and_served_without_a_compiler(
    installed: Installed, tmp_path: Path
) -> None:
    assert shutil.which("cc", path=environment(installed.folder)["PATH"]) is None
    program_of(ROOT / "README.md", tmp_path)
    started = time.monotonic()
    samples, auc = installed.run(installed.python, "program.py", cwd=tmp_path).split()
    trained = time.monotonic()
    command = installed.folder / "bin" / "paddlebox"
    installed.run(command, "export", "runs/clicks", "--out", "clicks.export", cwd=tmp_path)
    log = tmp_path / "serve.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [command, "serve", "clicks.export", "--port", "0"],
            cwd=tmp_path, env=environment(installed.folder), stderr=output,
        )  # fmt: skip
    try:
        answer = served(server, log, {"user": "u1", "item": "i3"})
        ended = time.monotonic()
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
    assert samples == "40000"  # 20,000 rows in two epochs
    assert float(auc) > 0.5
    (probability,) = answer["predictions"]
    assert 0.5 < probability <= 1  # user 1 always clicks
    print(
        f"\n{installed.wheel.name}: pip install {installed.install_s:.1f} s, training "
        f"{trained - started:.1f} s, export and first prediction {ended - trained:.1f} s, "
        f"together {installed.install_s + ended - started:.1f} s"
    )


def test_the_wheel_without_paddle_names_the_paddle_to_install(installed: Installed) -> None:
    message = installed.error_of_import(
        """
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "paddle":
                    raise ModuleNotFoundError("No module named 'paddle'", name="paddle")
        sys.meta_path.insert(0, Absent())
        """
    )
    assert re.fullmatch(
        r"paddlebox needs Paddle, found none\. This wheel of paddlebox was made for Paddle 3\.3\.1 "
        rf"\(commit \w{{10}}, CUDA False\): run `pip install {re.escape(PADDLE)}`",
        message,
    )


def test_the_wheel_with_another_paddle_names_the_paddle_to_install(installed: Installed) -> None:
    message = installed.error_of_import(
        "import paddle; paddle.version.cuda_version = '12.6'"  # as in paddlepaddle-gpu
    )
    assert "This wheel of paddlebox was made for Paddle 3.3.1" in message
    assert "CUDA 12.6): run `pip uninstall --yes paddlepaddle-gpu`, then `pip install" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("wheel", WHEELS, ids=python_of)
def test_a_wheel_holds_the_package_and_its_libraries(wheel: Path, tmp_path: Path) -> None:
    serving = {"paddlebox/libpaddlebox_serve.so", "paddlebox/include/paddlebox_serve.h"}
    built = {"paddlebox/_ops.so", "paddlebox/_build_info.py", *serving}
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        packed.extract("paddlebox/_ops.so", tmp_path)
    inside = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    assert inside == tracked("paddlebox") | built
    assert any(name.endswith("/LICENSE") for name in names)
    library = tmp_path / "paddlebox/_ops.so"
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert "[libpaddle.so]" in dynamic.stdout
    assert "RUNPATH" not in dynamic.stdout  # would name folders of the machine that built it
    assert "RPATH" not in dynamic.stdout
    assert str(ROOT).encode() not in library.read_bytes()


def test_there_is_a_wheel_of_this_version() -> None:
    assert WHEELS  # else the tests above are skipped


def sdist() -> Path:
    return ROOT / (FOLDER or "dist") / f"paddlebox-{__version__}.tar.gz"


def test_the_sdist_holds_what_a_build_needs_and_nothing_else() -> None:
    top = f"paddlebox-{__version__}/"
    with tarfile.open(sdist()) as packed:
        files = {member.name.removeprefix(top) for member in packed.getmembers() if member.isfile()}
    made = {"PKG-INFO", "setup.cfg"}
    files = {name for name in files - made if not name.startswith("paddlebox.egg-info/")}
    beside = {"LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", "pyproject.toml", "setup.py"}
    assert files == tracked("ops", "paddlebox") | beside


@pytest.mark.long  # compiles all of ops/
def test_a_wheel_is_built_from_the_sdist(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path, sdist()], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert "paddlebox/_ops.so" in packed.namelist()
