"""The command `paddlebox completion`: prints a script by which a shell completes commands, options,
the keys of a config and paths. The script holds all words, so no TAB starts Python.

A script is a table and a function. A key of the table is "COMMAND OPTION" for the value of an
option, "COMMAND -" for the options, "COMMAND " for the positional arguments, and " " for the
commands. An option that takes no value has no entry. Where nothing has one, paths are completed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paddlebox.config.describe import describe
from paddlebox.launch.arguments import create_parser, parse, subcommands
from paddlebox.tools.commands import COMMANDS, parser_of

FILES, FOLDERS, KEYS = "@files", "@folders", "@keys"
#: The words to choose from, each with a line about it; or FILES, FOLDERS, or KEYS of a config.
Entry = Mapping[str, str] | str


def completion_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox completion`. Returns the exit code."""
    print(script(parse(completion_parser(), argv).shell))
    return 0


def completion_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Prints a script that completes commands, options, keys of configs, and paths. Write it to "
        "~/.local/share/bash-completion/completions/paddlebox for bash, to the file _paddlebox in "
        "a folder of $fpath for zsh, or to ~/.config/fish/completions/paddlebox.fish for fish."
    )
    parser.add_argument("shell", choices=[*_SHELLS], help="the shell that reads the script")
    return parser


def script(shell: str) -> str:
    """The script for bash, zsh or fish."""
    table: dict[str, Entry] = {
        " ": {name: about for name, (_, about) in COMMANDS.items()},
        " -": {"--help": "show the commands", "--version": "show the version"},
        KEYS: {f"{key.path}=": key.meaning for key in describe()},
    }
    several: list[str] = []  # the keys of options that take several values
    for name in COMMANDS:
        parser = parser_of(name)
        _add(table, several, name, parser)
        for own, of in subcommands(parser).items():
            _add(table, several, f"{name} {own}", of)
    return "\n".join(_SHELLS[shell](table, several))


def _add(
    table: dict[str, Entry], several: list[str], command: str, parser: argparse.ArgumentParser
) -> None:
    """Add the entries of a command."""
    options: dict[str, str] = {}
    table[f"{command} -"] = options
    for action in parser._actions:
        for name in action.option_strings:
            options[name] = _line(action.help)
        for key in [f"{command} {name}" for name in action.option_strings or ("",)]:
            if action.nargs != 0:
                table.setdefault(key, _entry(action))
            if action.nargs == argparse.ONE_OR_MORE:
                several.append(key)


def _entry(action: argparse.Action) -> Entry:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if isinstance(action, argparse._SubParsersAction):
        return {one.dest: one.help or "" for one in action._choices_actions}
    if action.choices is not None:
        return {str(choice): "" for choice in action.choices}
    if metavar.startswith("KEY="):
        return KEYS
    if metavar.endswith(("DIR", "FOLDER")) or metavar.startswith("RUN"):
        return FOLDERS
    return FILES if action.type is Path or metavar == "FILE" else {}


def _line(text: str | None) -> str:
    return (text or "").partition("; default:")[0].replace("%%", "%")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "’") + "'"


_BASH = """\
_paddlebox() {
    local word="${COMP_WORDS[COMP_CWORD]}" command="" option="" at
    if ((COMP_CWORD > 1)); then command="${COMP_WORDS[1]}"; fi
    case "$command" in
    store | slots) if ((COMP_CWORD > 2)); then command+=" ${COMP_WORDS[2]}"; fi ;;
    esac
    for ((at = COMP_CWORD - 1; at > 1; at--)); do
        if [[ ${COMP_WORDS[at]} == -* ]]; then
            option="${COMP_WORDS[at]}"
            break
        fi
    done
    if ((at < COMP_CWORD - 1)) && [[ $_paddlebox_several != *"|$command $option|"* ]]; then
        option=""
    fi
    if [[ $word == -* ]]; then option="-"; fi
    local entry="${_paddlebox[$command $option]-${_paddlebox[$command ]-@files}}"
    if [[ ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then entry=@files; fi  # the value of a key
    case "$entry" in
        @files) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
        @folders) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
        @keys) mapfile -t COMPREPLY < <(compgen -W "${_paddlebox[@keys]}" -- "$word") ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$entry" -- "$word") ;;
    esac
    case "$entry" in
        @keys) compopt -o nospace ;;
        @*) compopt -o filenames ;;
    esac
} 2> /dev/null
complete -F _paddlebox paddlebox"""


def _bash(table: Mapping[str, Entry], several: Sequence[str]) -> Iterator[str]:
    yield "# Completes the command paddlebox in bash. Printed by `paddlebox completion bash`."
    yield f"_paddlebox_several={_quoted(''.join(f'|{key}|' for key in several))}"
    yield "declare -gA _paddlebox=("
    for key, entry in table.items():
        words = entry if isinstance(entry, str) else " ".join(entry)
        yield f"    [{_quoted(key)}]={_quoted(words)}"
    yield ")"
    yield _BASH


_ZSH = """\
_paddlebox() {
    local word=$words[CURRENT] command='' option='' at
    if ((CURRENT > 2)); then command=$words[2]; fi
    case $command in
    (store|slots) if ((CURRENT > 3)); then command="$command $words[3]"; fi ;;
    esac
    for ((at = CURRENT - 1; at > 2; at--)); do
        if [[ $words[at] == -* ]]; then
            option=$words[at]
            break
        fi
    done
    if ((at < CURRENT - 1)) && [[ $_paddlebox_several != *"|$command $option|"* ]]; then
        option=''
    fi
    if [[ $word == -* ]]; then option='-'; fi
    local key="$command $option"
    if ((! ${+_paddlebox_table[$key]})); then key="$command "; fi
    local entry=${_paddlebox_table[$key]-@files}
    local lines=(${(f)_paddlebox_table[$key]}) keys=(${(f)_paddlebox_table[@keys]})
    case $entry in
        @files) _files ;;
        @folders) _files -/ ;;
        @keys) _describe key keys -S '' ;;
        ?*) _describe word lines ;;
    esac
}
_paddlebox "$@\""""


def _zsh(table: Mapping[str, Entry], several: Sequence[str]) -> Iterator[str]:
    yield "#compdef paddlebox"
    yield "# Completes the command paddlebox in zsh. Printed by `paddlebox completion zsh`."
    yield f"typeset -g _paddlebox_several={_quoted(''.join(f'|{key}|' for key in several))}"
    yield "typeset -gA _paddlebox_table=("
    for key, entry in table.items():
        lines = entry if isinstance(entry, str) else "\n".join(f"{w}:{a}" for w, a in entry.items())
        yield f"    {_quoted(key)} {_quoted(lines)}"
    yield ")"
    yield _ZSH


_FISH = """\
function __paddlebox
    set -l words (commandline -opc)
    set -l command $words[2]
    if test (count $words) -gt 2; and contains -- "$command" store slots
        set command "$command $words[3]"
    end
    set -l option ''
    for at in (seq (count $words) -1 3)
        if string match -q -- '-*' $words[$at]
            set -l key "$command $words[$at]"
            if test $at -eq (count $words); or contains -- $key $__paddlebox_several
                set option $words[$at]
            end
            break
        end
    end
    if string match -q -- '-*' (commandline -ct)
        set option -
    end
    __paddlebox_table "$command $option"
    or __paddlebox_table "$command "
    or __fish_complete_path (commandline -ct)
end
complete -c paddlebox -f -a '(__paddlebox)'"""


def _fish(table: Mapping[str, Entry], several: Sequence[str]) -> Iterator[str]:
    yield "# Completes the command paddlebox in fish. Printed by `paddlebox completion fish`."
    yield f"set -g __paddlebox_several {' '.join(map(_quoted, several))}"
    yield "function __paddlebox_table"
    yield "    switch $argv[1]"
    calls = {
        FILES: "__fish_complete_path (commandline -ct)",
        FOLDERS: "__fish_complete_directories (commandline -ct)",
        KEYS: f"__paddlebox_table {KEYS}",
    }
    for key, entry in table.items():
        yield f"        case {_quoted(key)}"
        words = [] if isinstance(entry, str) else [word for pair in entry.items() for word in pair]
        call = f"printf '%s\\t%s\\n' {' '.join(map(_quoted, words))}" if words else "true"
        yield f"            {calls[entry] if isinstance(entry, str) else call}"
    yield "        case '*'\n            return 1\n    end\n    return 0\nend"
    yield _FISH


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
