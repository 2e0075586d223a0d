"""The command ``completions``: scripts by which bash, zsh and fish complete commands, options and their values.

The script is made of the parser itself, so that it knows every option. It starts no Python when it completes.
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, NamedTuple

from weightmap.cli import show
from weightmap.cli.outcome import OK

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")


class _Option(NamedTuple):
    """An option: its spellings, its help, whether it takes a value, and the possible values."""

    flags: tuple[str, ...]
    help: str
    valued: bool
    choices: tuple[str, ...]


class _Command(NamedTuple):
    """A command: its options, and the possible values of its arguments; none for paths and words."""

    name: str
    help: str
    options: tuple[_Option, ...]
    choices: tuple[str, ...]


def completions(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Print the script by which a shell completes commands, options and values of the parser."""
    commands = tuple(_commands(parser))
    for line in {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](commands):
        show.emit(line)
    return OK


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    [subparsers] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}  # noqa: SLF001
    for name, sub in subparsers.choices.items():
        actions = sub._actions  # noqa: SLF001 - argparse has no other way to ask a parser for its options
        options = tuple(_option(action) for action in actions if action.option_strings)
        choices = tuple(str(one) for action in actions if not action.option_strings for one in action.choices or ())
        yield _Command(name, helps[name], options, choices)


def _option(action: argparse.Action) -> _Option:
    choices = tuple(map(str, action.choices or ()))
    return _Option(tuple(action.option_strings), action.help or "", action.nargs != 0, choices)


def _bash(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield "# source <(weightmap completions bash)"
    yield "_weightmap() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" command="" known="" i'
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '        [[ ${COMP_WORDS[i]} != -* ]] && { command="${COMP_WORDS[i]}"; break; }'
    yield "    done"
    yield '    case "$command $before" in'
    for command in commands:
        for option in command.options:
            if option.choices:
                flags = " | ".join(f'"{command.name} {flag}"' for flag in option.flags)
                yield f'        {flags}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$word")); return ;;'
    yield "    esac"
    yield '    case "$command" in'
    yield f'        "") known="{" ".join(command.name for command in commands)} --help --version" ;;'
    for command in commands:
        flags = " ".join(flag for option in command.options for flag in option.flags)
        known = f'[[ $word == -* ]] && known="{flags}"'
        if command.choices:
            known += f' || known="{" ".join(command.choices)}"'
        yield f"        {command.name}) {known} ;;"
    yield "    esac"
    yield '    [[ $known ]] && COMPREPLY=($(compgen -W "$known" -- "$word"))'
    yield "    return 0"
    yield "}"
    # Where the function finds nothing, readline completes a path.
    yield "complete -o default -F _weightmap weightmap"


def _zsh(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield "#compdef weightmap"
    yield "# source <(weightmap completions zsh), after compinit; or a file _weightmap in a folder of $fpath"
    yield "_weightmap() {"
    yield "    local -a commands=("
    for command in commands:
        yield f"        {shlex.quote(f'{command.name}:{command.help}')}"
    yield "    )"
    yield "    if ((CURRENT == 2)); then"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield '    local command="${words[2]}"'
    yield "    shift words"
    yield "    ((CURRENT--))"
    yield '    case "$command" in'
    for command in commands:
        yield f"        {command.name})"
        yield "            _arguments -s \\"
        for option in command.options:
            for flag in option.flags:
                about = "".join(f"\\{char}" if char in "[]:\\" else char for char in option.help)
                value = ""
                if option.valued:
                    value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
                yield f"                {shlex.quote(f'*{flag}[{about}]{value}')} \\"
        rest = f"*:value:({' '.join(command.choices)})" if command.choices else "*:file:_files"
        yield f"                {shlex.quote(rest)} ;;"
    yield "    esac"
    yield "}"
    # As a file in $fpath this is the body of the function itself.
    yield 'if [[ "${funcstack[1]}" == _weightmap ]]; then _weightmap "$@"; else compdef _weightmap weightmap; fi'


def _fish(commands: tuple[_Command, ...]) -> Iterator[str]:
    yield "# weightmap completions fish > ~/.config/fish/completions/weightmap.fish"
    for command in commands:
        about = _fish_quoted(command.help)
        yield f"complete -c weightmap -n __fish_use_subcommand -f -a {command.name} -d {about}"
    for command in commands:
        when = f"complete -c weightmap -n '__fish_seen_subcommand_from {command.name}'"
        if command.choices:
            yield f"{when} -f -a {_fish_quoted(' '.join(command.choices))}"
        for option in command.options:
            spelt = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags)
            value = " -r" if option.valued else ""
            if option.choices:
                value = f" -x -a {_fish_quoted(' '.join(option.choices))}"
            yield f"{when}{spelt}{value} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    """Quote a text for fish: its rules within quotes differ from other shells'."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
