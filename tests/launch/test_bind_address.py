"""Paddle's launcher listens on the master's address only."""

from __future__ import annotations

import importlib
import sys

import pytest

from paddlebox.launch import bind_address
from tests.support.processes import free_port


@pytest.mark.parametrize("master", [["--master", "127.0.0.1:{}"], ["--master=http://127.0.0.1:{}"]])
def test_the_server_of_the_launcher_listens_where_master_says(
    master: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, found = free_port(), list[str]()
    kv_server = importlib.import_module("paddle.distributed.launch.utils.kv_server").KVServer
    monkeypatch.setattr(kv_server, "server_bind", kv_server.server_bind)  # restored after the test

    def launch() -> None:
        with kv_server(port) as server:
            found.append(server.socket.getsockname()[0])

    monkeypatch.setattr(importlib.import_module("paddle.distributed.launch.main"), "launch", launch)
    words = [word.format(port) for word in master]
    monkeypatch.setattr(sys, "argv", ["launch", "--nnodes", "2", *words, "train.py", "--rank", "9"])
    bind_address.main()
    assert found == ["127.0.0.1"]
