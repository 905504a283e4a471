"""The command `paddlebox`: all tools in one, wherever the package is installed.

    paddlebox train -c config.yaml --run-dir runs/first

`python -m paddlebox` is the same. The scripts in the top-level tools/ run the same functions.
"""

from __future__ import annotations

import argparse
import sys
import warnings

from paddlebox import __version__
from paddlebox.launch import sigpipe
from paddlebox.launch.help import Help
from paddlebox.tools.commands import COMMANDS, main_of


def main() -> int:
    """Run the command that the arguments of this process name. Returns its exit code."""
    given = sys.argv[1:]
    if not given or given[0] not in COMMANDS:
        return _without_command(given)
    # Tools read sys.argv: its first part is their name in usage lines and errors.
    sys.argv = [f"paddlebox {given[0]}", *given[1:]]
    warnings.filterwarnings("ignore", module="paddle")
    try:
        run = main_of(given[0])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("paddlebox"):
            raise
        missing = f"{sys.executable} has no package {error.name}, which paddlebox requires"
        print(f"ImportError: {missing}: install it (docs/building.md)", file=sys.stderr)
        return 1
    with sigpipe.handled():
        return run()


def _without_command(given: list[str]) -> int:
    about = "Trains and serves CTR models. `paddlebox COMMAND --help` lists arguments."
    parser = argparse.ArgumentParser("paddlebox", description=about, formatter_class=Help)
    parser.add_argument("--version", action="version", version=f"paddlebox {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (_, line) in COMMANDS.items():
        commands.add_parser(name, help=line)
    if given and not given[0].startswith("-"):
        from paddlebox.config.check import did_you_mean  # slow to import

        hint = did_you_mean(given[:1], COMMANDS)
        parser.error(f"expected a command, found {given[0]!r}{hint}")
    parser.parse_args(given)
    parser.print_help()
    return 2


if __name__ == "__main__":
    sys.exit(main())
