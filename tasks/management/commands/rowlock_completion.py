"""`rowlock_completion`: print a script that completes commands, options and values in bash or zsh."""

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandParser, DjangoHelpFormatter

from tasks.commands import TerminalCommand
from tasks.commands.output import write_line

PLAIN = re.compile(r"[\w.:/@-]+", re.ASCII)
# `_rowlock_words COMMAND WORD`: the words that may follow WORD; without a command, the commands.
WORDS = """_rowlock_words() {{
    case "$1 $2" in
{values}
    esac
    case "$1" in
{options}
    esac
}}
"""
BASH = """_rowlock() {
    local at=0 command='' before='' word=${COMP_WORDS[COMP_CWORD]}
    while [ $at -lt $COMP_CWORD ]; do
        case ${COMP_WORDS[at]} in manage.py | */manage.py | rowlock | */rowlock) break ;; esac
        at=$((at + 1))
    done
    COMPREPLY=()
    if [ $at -ge $COMP_CWORD ]; then return; fi
    if [ $COMP_CWORD -gt $((at + 1)) ]; then
        command=${COMP_WORDS[at + 1]} before=${COMP_WORDS[COMP_CWORD - 1]}
    fi
    if [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
    COMPREPLY=($(compgen -W "$(_rowlock_words "$command" "$before")" -- "$word"))
}
complete -o default -F _rowlock rowlock manage.py python python3
"""
ZSH = """_rowlock() {
    local at=1 command='' before=''
    while (( at < CURRENT )) && [[ ${words[at]:t} != (manage.py|rowlock) ]]; do (( at++ )); done
    if (( at < CURRENT )); then
        if (( CURRENT > at + 1 )); then command=${words[at + 1]} before=${words[CURRENT - 1]}; fi
        local -a found=(${=$(_rowlock_words "$command" "$before")})
        if (( $#found )); then compadd -a found; return; fi
    elif [[ $service == python* ]] && (( $+functions[_python] )); then
        _python; return
    fi
    _files
}
compdef _rowlock rowlock manage.py python python3
"""
GLUE = {"bash": BASH, "zsh": ZSH}


class Command(TerminalCommand):
    help = (
        "Print a script that completes commands, options and their values, for `rowlock`, `manage.py` and `python "
        "manage.py`. Write it to a file and source that in ~/.bashrc, or in ~/.zshrc after `compinit`."
    )
    examples = ("bash > ~/.rowlock.bash", "zsh > ~/.rowlock.zsh")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("shell", choices=list(GLUE), help="The shell.")

    def handle(self, *args: Any, **options: Any) -> None:
        write_line(self.stdout, words_of_all() + GLUE[options["shell"]])


class Collector(DjangoHelpFormatter):
    """A formatter of help that keeps the parser's arguments instead of writing about them."""

    def __init__(self, found: list[Action], prog: str) -> None:
        super().__init__(prog)
        self.found = found

    def add_usage(self, usage: Any, actions: Iterable[Action], *args: Any, **kwargs: Any) -> None:
        self.found.extend(action for action in actions if action.help != SUPPRESS)


def words_of_all() -> str:
    """The shell function that knows the words of all commands, and the options of ours."""
    names = sorted(get_commands().items())
    values: list[str] = []
    options = [clause("", (name for name, _ in names))]
    for name, app in names:
        command = load_command_class(app, name) if isinstance(app, str) else app
        if isinstance(command, TerminalCommand):
            actions: list[Action] = []
            parser = command.create_parser("manage.py", name)
            parser.formatter_class = partial(Collector, actions)
            parser.format_usage()
            values += values_of(name, actions)
            options.append(clause(name, words_of(actions)))
    return WORDS.format(values="\n".join(values), options="\n".join(options))


def values_of(name: str, actions: Iterable[Action]) -> Iterator[str]:
    """For each option that needs a value, the values that it accepts; nothing where it accepts any."""
    for action in actions:
        if action.nargs not in (0, "?", "*"):
            for option in action.option_strings:
                yield clause(f"{name} {option}", map(str, action.choices or ()))


def words_of(actions: Iterable[Action]) -> Iterator[str]:
    """The options, and the values of arguments that have a list."""
    for action in actions:
        choices = () if action.option_strings else map(str, action.choices or ())
        yield from (*(option for option in action.option_strings if option.startswith("--")), *choices)


def clause(pattern: str, words: Iterable[str]) -> str:
    return f"    '{pattern}') echo '{' '.join(filter(PLAIN.fullmatch, words))}'; return ;;"
