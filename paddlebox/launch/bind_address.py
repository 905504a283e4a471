"""Paddle's launcher, changed so that its key-value server listens on the master's address only.

    python -m paddlebox.launch.bind_address ...    # arguments of paddle.distributed.launch

Nodes find each other through that server. Paddle's own launcher binds the server to every address
of the host, without authentication: anyone who reaches the server can register nodes.
"""

from __future__ import annotations

import http.server
import importlib
import os
import sys

from paddlebox.launch.launcher import launch_options


def main() -> None:
    """Run Paddle's launcher with the arguments of this process."""
    master = launch_options(["", *sys.argv[1:]], os.environ).master
    host = master.removeprefix("http://").rpartition(":")[0]
    if host:
        server = importlib.import_module("paddle.distributed.launch.utils.kv_server").KVServer

        def server_bind(self: http.server.HTTPServer) -> None:
            self.server_address = (host, int(self.server_address[1]))
            http.server.HTTPServer.server_bind(self)

        server.server_bind = server_bind
    importlib.import_module("paddle.distributed.launch.main").launch()


if __name__ == "__main__":
    main()
