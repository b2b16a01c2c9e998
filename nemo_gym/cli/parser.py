"""The argument parser of `gym`, built lazily: only the module of the requested command is imported.

A command module has a docstring (its help), `add_arguments(parser)` and `run(args) -> int`. Besides its flags, `args`
has `overrides` (words without a flag), `prog` (the command as text), `flag_names` (dest -> flag), `debug` (show
tracebacks) and `initial_gc_threshold` (the threshold of the garbage collector when the command started). A leaf is the
parser of one command.
"""

import argparse
import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from nemo_gym.cli.terminal import output

USAGE_ERROR = 2
DESCRIPTION = """Evaluate agents, run servers, check configurations.

Flags cover the common inputs; everything else is a Hydra override (`+key=value`, `++key=value`, `key=value`, `~key`)
and may stand anywhere among the flags.
"""
EXAMPLES = """\
examples:
  gym list environments
  gym eval run --environment arithmetic --model-type scripted_model
  gym view --text results/latest
  gym env init --environment mine
"""


def _group_modules(name: str, commands: str) -> dict[str, str]:
    return {command: f"nemo_gym.cli.{name}.{command}" for command in commands.split()}


GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "list": (
        "list environments, benchmarks and servers",
        dict.fromkeys(
            ("benchmarks", "environments", "agents", "models", "resources-servers"), "nemo_gym.cli.list.components"
        ),
    ),
    "env": (
        "run, inspect and check environments",
        _group_modules("env", "start status validate resolve init test audit packages prefetch publish"),
    ),
    "eval": ("evaluate a model", _group_modules("eval", "prepare run aggregate profile reverify export submit")),
    "runs": (
        "list, compare, tag and delete stored runs",
        _group_modules("runs", "list show compare annotations tag rm"),
    ),
    "dataset": (
        "prepare, publish and export rows",
        _group_modules("dataset", "collate render export upload download migrate rm"),
    ),
    "train": ("train a model", _group_modules("train", "demo")),
    "dev": ("work on NeMo Gym itself", _group_modules("dev", "test reinstall")),
}
"""Group -> (purpose, command -> module)."""
TOP_LEVEL_COMMANDS = {name: f"nemo_gym.cli.{name}" for name in ("view", "search", "doctor", "explain", "completion")}
"""Command without a group -> module."""
GROUPS_WITH_OVERRIDES = ("env", "eval", "dataset")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal, except examples: paragraphs with an indented line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            is_example = any(line.startswith(" ") for line in paragraph.splitlines())
            words = " ".join(paragraph.split())
            wrapped = textwrap.fill(words, width, initial_indent=indent, break_on_hyphens=False)
            paragraphs.append(paragraph.rstrip() if is_example else wrapped)
        return "\n\n".join(paragraphs)


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        output.report_error(message)
        raise SystemExit(USAGE_ERROR)


def build_parser(words: Sequence[str]) -> tuple[Parser, ModuleType | None]:
    """Build the parser, with the arguments of only the command in `words`; return it and the command's module."""
    parser = Parser(prog="gym", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the versions of NeMo Gym and its dependencies")
    parser.add_argument("--json", action="store_true", dest="version_json", help="print --version as JSON")
    verbose_help = "print more details"
    parser.add_argument("-v", "--verbose", action="store_true", dest="verbose_before_command", help=verbose_help)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    groups = parser.add_subparsers(dest="group", metavar="COMMAND", parser_class=Parser)
    first_word, second_word = [*_command_words(words), "", ""][:2]
    module: ModuleType | None = None
    for group, (purpose, commands) in GROUPS.items():
        group_parser = groups.add_parser(group, help=purpose, description=purpose)
        if group != first_word:
            continue  # the help does not show the commands of this group, and adding each takes time
        leaves = group_parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
        for name in [second_word] if second_word in commands else commands:  # only the requested one, if valid
            module = _add_command(leaves, name, commands[name], requested=name == second_word) or module
    for name in [first_word] if first_word in TOP_LEVEL_COMMANDS else TOP_LEVEL_COMMANDS:
        module = _add_command(groups, name, TOP_LEVEL_COMMANDS[name], requested=name == first_word) or module
    return parser, module


def _command_words(words: Sequence[str]) -> list[str]:
    """Return the words that are not flags; the first two of them name the command."""
    return [word for word in words if not word.startswith("-")]


def _add_command(leaves: Any, name: str, module_path: str, *, requested: bool) -> ModuleType | None:
    """Add a command with its arguments and return its module; if it is not requested, add only its line of help."""
    if not requested:
        leaves.add_parser(name, help=_describe(_first_line(module_path), name))
        return None
    module = importlib.import_module(module_path)
    text = _describe((module.__doc__ or "").strip(), name)
    leaf = leaves.add_parser(name, help=text.splitlines()[0], description=text)
    module.add_arguments(leaf)
    shows_log = "-v" not in leaf._option_string_actions  # otherwise the command itself decides what --verbose prints
    if shows_log:
        leaf.add_argument("-v", "--verbose", action="store_true", help="print more details")
    flag_names = {action.dest: action.option_strings[-1] for action in leaf._actions if action.option_strings}
    leaf.set_defaults(prog=leaf.prog, flag_names=flag_names, verbose_shows_log=shows_log)
    leaf.usage = _usage(leaf, takes_overrides=module_path.split(".")[2] in GROUPS_WITH_OVERRIDES)
    return module


def _describe(text: str, command: str) -> str:
    """Replace COMPONENTS in a help text by the name of the command: the `gym list` commands share one module."""
    return text.replace("COMPONENTS", command.replace("-", " "))


def _usage(leaf: argparse.ArgumentParser, *, takes_overrides: bool) -> str:
    """Return the usage of a command as one line, with `[options]` for its flags."""
    forms: dict[Any, str] = {None: "{}", "?": "[{}]", "*": "[{} ...]"}
    positionals = [action for action in leaf._actions if not action.option_strings]
    names = [forms.get(action.nargs, "{} ...").format(action.metavar or action.dest) for action in positionals]
    return " ".join([leaf.prog, *names, "[options]", *(["[+key=value ...]"] if takes_overrides else [])])


def _first_line(module_path: str) -> str:
    """Return the first line of a module's docstring without importing the module."""
    spec = importlib.util.find_spec(module_path)
    if spec is None or spec.origin is None:
        return ""
    with open(spec.origin, encoding="utf-8") as source:  # noqa: PTH123 - faster than pathlib, for every command
        return source.readline().strip().strip('"')


def check_command(words: Sequence[str]) -> None:
    """End the process with a usage error and the most similar name if a group or command does not exist."""
    names = _command_words(words)
    if not names:
        return
    levels = [[*GROUPS, *TOP_LEVEL_COMMANDS], list(GROUPS.get(names[0], ("", {}))[1])]
    for depth, (word, commands) in enumerate(zip(names[:2], levels, strict=False)):
        if "=" in word:  # an override in place of a command: argparse reports it
            return
        if commands and word not in commands:
            hint = output.did_you_mean(word, commands, f" Commands: {', '.join(commands)}.")
            output.report_error(f"`{word}` is not a command of {' '.join(['gym', *names[:depth]])}.{hint}")
            raise SystemExit(USAGE_ERROR)


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands of a parser, by name."""
    action = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
    return dict(action.choices) if action is not None else {}


def find_leaf(parser: argparse.ArgumentParser, names: Sequence[str]) -> argparse.ArgumentParser:
    """Follow `names` from a parser to its subcommands and return the last parser; skip names that are no subcommand."""
    for name in names:
        parser = command_parsers(parser).get(name, parser)
    return parser


def check_flags(leaf: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End the process with a usage error if a flag is among `words`, those that no argument of the command takes."""
    flags = [word for word in words if word.startswith("-")]
    if flags:
        by_word = {name.lstrip("-"): name for name in leaf._option_string_actions}  # dashes make any two flags similar
        close = [get_close_matches(flag.split("=")[0].lstrip("-"), by_word, n=1) for flag in flags]
        hint = "".join(f" Did you mean `{by_word[name]}`?" for matches in close for name in matches)
        leaf.error(f"unrecognized arguments: {' '.join(flags)}.{hint}")
    files = [word for word in words if word.endswith((".jsonl", ".yaml")) and Path(word).is_file()]
    if files:
        names = [flag for flag in ("--rollouts", "--input", "--config") if flag in leaf._option_string_actions]
        hint = f" Did you mean `{names[0]} {files[0]}`?" if names else ""
        leaf.error(f"unrecognized arguments: {' '.join(files)}.{hint}")
