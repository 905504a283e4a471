"""Paddle's launcher, but its key-value server listens on the master's address only.

    python -m paddlebox.launch.bind_address ...    # arguments of paddle.distributed.launch

Nodes find each other through that server. Paddle's own launcher binds it to every address of the
host, without authentication: anyone who reaches it can register nodes.
"""

from __future__ import annotations

import argparse
import http.server
import importlib
import os


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--master", default=os.environ.get("PADDLE_MASTER", ""))
    master = str(parser.parse_known_args()[0].master)
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
