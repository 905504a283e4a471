from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.shared import own_copy
from tests.tools.publish.saved import Saved, make_saves, saved_in


def _make(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        make_saves(folder)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_in(own_copy(tmp_path_factory, "published-saves", _make))


class Server:
    """A Redis server at a socket of its own, which forgets everything when it ends."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self._folder, self._settings = folder, settings
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self, *settings: str) -> None:
        options = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            ["redis-server", *options, "--save", "", *self._settings, *settings],
            stdout=subprocess.DEVNULL,
        )
        while not self._listens():
            assert self._process.poll() is None
            time.sleep(0.01)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.socket.unlink(missing_ok=True)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = Server(tmp_path)
    yield server
    server.kill()
