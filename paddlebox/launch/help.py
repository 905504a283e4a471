"""The form of the help of all commands."""

from __future__ import annotations

import argparse


class Help(argparse.HelpFormatter):
    """Ends the help of an option with its default, unless the text tells it. The commands of a
    command have no heading of their own."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        untold = action.option_strings and action.nargs != 0 and "default:" not in text
        shown = untold and action.default not in (None, "", argparse.SUPPRESS, [])
        return f"{text}; default: %(default)s" if shown else text

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(super()._format_action, action._choices_actions))
        return super()._format_action(action)
