"""`gym`: evaluate agents, run servers, check configurations.

Flags cover the common inputs; anything else is a Hydra override (`+key=value`, `++key=value`, `key=value`, `~key`)
and may stand anywhere among them.
"""

import argparse
import gc
import importlib
import importlib.util
import logging
import os
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NoReturn

from nemo_gym.cli import output, rounds
from nemo_gym.errors import GymError

GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "list": (
        "what there is to run",
        {
            "benchmarks": "nemo_gym.cli.list_benchmarks",
            "environments": "nemo_gym.cli.list_environments",
            "agents": "nemo_gym.cli.list_agents",
            "models": "nemo_gym.cli.list_models",
            "resources-servers": "nemo_gym.cli.list_resources_servers",
        },
    ),
    "env": (
        "run, inspect and check environments",
        {
            "start": "nemo_gym.cli.env_start",
            "status": "nemo_gym.cli.env_status",
            "validate": "nemo_gym.cli.env_validate",
            "resolve": "nemo_gym.cli.env_resolve",
            "init": "nemo_gym.cli.env_init",
            "test": "nemo_gym.cli.env_test",
            "audit": "nemo_gym.cli.env_audit",
            "packages": "nemo_gym.cli.env_packages",
            "prefetch": "nemo_gym.cli.env_prefetch",
            "publish": "nemo_gym.cli.env_publish",
        },
    ),
    "eval": (
        "evaluate a model",
        {
            "prepare": "nemo_gym.cli.eval_prepare",
            "run": "nemo_gym.cli.eval_run",
            "aggregate": "nemo_gym.cli.eval_aggregate",
            "profile": "nemo_gym.cli.eval_profile",
            "reverify": "nemo_gym.cli.eval_reverify",
            "submit": "nemo_gym.cli.eval_submit",
        },
    ),
    "dataset": (
        "prepare, publish and export rows",
        {
            "collate": "nemo_gym.cli.dataset_collate",
            "render": "nemo_gym.cli.dataset_render",
            "export": "nemo_gym.cli.dataset_export",
            "upload": "nemo_gym.cli.dataset_upload",
            "download": "nemo_gym.cli.dataset_download",
            "migrate": "nemo_gym.cli.dataset_migrate",
            "rm": "nemo_gym.cli.dataset_rm",
        },
    ),
    "dev": (
        "work on NeMo Gym itself",
        {"test": "nemo_gym.cli.dev_testing", "reinstall": "nemo_gym.cli.dev_reinstall"},
    ),
}
"""Group -> (what it is for, command -> module). A command module has a docstring, `add_arguments` and `run`."""

ALONE = {
    "view": "nemo_gym.cli.view",
    "search": "nemo_gym.cli.search",
    "doctor": "nemo_gym.cli.doctor",
    "explain": "nemo_gym.cli.explain",
    "completion": "nemo_gym.cli.completion",
}
"""Commands that belong to no group -> module."""

OVERRIDDEN = ("env_", "eval_", "dataset_")
"""Modules of commands that read a configuration."""
EXAMPLES = """\
examples:
  gym list environments
  gym eval run --environment arithmetic --model-type scripted_model
  gym view --text results/rollouts.jsonl
  gym env init --environment mine
"""
USAGE_ERROR = 2
INTERRUPTED = 130


class HelpText(argparse.HelpFormatter):
    """Prose as wide as the terminal; a paragraph with an indented line is an example and stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        shown = []
        for part in text.split("\n\n"):
            is_example = any(line.startswith(" ") for line in part.splitlines())
            flowing = textwrap.fill(" ".join(part.split()), width, initial_indent=indent, break_on_hyphens=False)
            shown.append(part.rstrip() if is_example else flowing)
        return "\n\n".join(shown)


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and whose complaints name the nearest thing that exists."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpText, **options)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        output.error(message)
        raise SystemExit(USAGE_ERROR)


def build_parser(words: Sequence[str]) -> tuple[Parser, ModuleType | None]:
    """The parser, with the one command's arguments that `words` ask for; other commands are not even imported."""
    parser = Parser(prog="gym", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the version and what this installation stands on")
    parser.add_argument("--json", action="store_true", dest="version_json", help="with --version: as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", dest="verbose_first", help="say more")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    groups = parser.add_subparsers(dest="group", metavar="COMMAND", parser_class=Parser)
    plain = [word for word in words if not word.startswith("-")]
    chosen: ModuleType | None = None
    for group, (purpose, commands) in GROUPS.items():
        sub = groups.add_parser(group, help=purpose, description=purpose)
        if plain[:1] != [group]:
            continue  # nobody will see its commands, and each costs a little
        leaves = sub.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
        for name in plain[1:2] if plain[1:2] and plain[1] in commands else commands:
            chosen = _add_command(leaves, name, commands[name], asked=plain[1:2] == [name]) or chosen
    for name in plain[:1] if plain[:1] and plain[0] in ALONE else ALONE:
        chosen = _add_command(groups, name, ALONE[name], asked=plain[:1] == [name]) or chosen
    return parser, chosen


def _add_command(leaves: Any, name: str, path: str, *, asked: bool) -> ModuleType | None:
    """A command's parser: whole, with its module, if it is the one asked for, else only its line in the help."""
    if not asked:
        leaves.add_parser(name, help=_first_line(path))
        return None
    module = importlib.import_module(path)
    text = (module.__doc__ or "").strip()
    leaf = leaves.add_parser(name, help=text.splitlines()[0], description=text)
    module.add_arguments(leaf)
    if "-v" not in leaf._option_string_actions:
        leaf.add_argument("-v", "--verbose", action="store_true", dest="verbose_log", help="say more")
    leaf.usage = _usage(leaf, takes_overrides=path.split(".")[-1].startswith(OVERRIDDEN))
    return module


def _usage(leaf: argparse.ArgumentParser, *, takes_overrides: bool) -> str:
    """One line; the options are listed below it anyway."""
    forms: dict[Any, str] = {None: "{}", "?": "[{}]", "*": "[{} ...]"}
    named = [action for action in leaf._actions if not action.option_strings]
    shown = [forms.get(action.nargs, "{} ...").format(action.metavar or action.dest) for action in named]
    return " ".join([leaf.prog, *shown, "[options]", *(["[+key=value ...]"] if takes_overrides else [])])


def _first_line(path: str) -> str:
    """The first line of a command's docstring, read without importing it."""
    spec = importlib.util.find_spec(path)
    if spec is None or spec.origin is None:
        return ""
    with open(spec.origin, encoding="utf-8") as source:  # noqa: PTH123 - a path we were just given as text
        return source.readline().strip().strip('"')


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _fill_standard_files()
    if argv is None:  # the process is this command's own
        gc.set_threshold(*rounds.RARE)
    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given or bool(os.environ.get("NEMO_GYM_DEBUG"))
    words = [word for word in given if word != "--debug"]  # may stand anywhere
    _check_words(words)
    parser, command = build_parser(words)
    args, rest = parser.parse_known_args(words)
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        leaf = _leaf(parser, args)
        leaf.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest_flag(leaf, unknown[0])}")
    if args.version:
        importlib.import_module("nemo_gym.cli.about").show(as_json=args.version_json)
        return 0
    if command is None:
        _help_for(parser, args)
        return 1
    said = getattr(args, "verbose_log", None)  # of commands that have no use of their own for it
    if said or (said is not None and args.verbose_first):
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        logging.getLogger("nemo_gym").setLevel(logging.DEBUG)
    args.verbose = args.verbose_first or bool(said) or getattr(args, "verbose", False)
    try:
        return int(command.run(args, rest))
    except GymError as error:
        if debug:
            raise
        output.error(str(error))
        output.pointer(error)
        return error.exit_status
    except KeyboardInterrupt:
        output.talk("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fill_standard_files() -> None:
    """A standard file that was closed (`gym ... >&-`) becomes nothing: a socket in its place would be written into."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one


def _check_words(words: Sequence[str]) -> None:
    """A misspelt group or command gets the nearest one that exists."""
    plain = [word for word in words if not word.startswith("-")]
    if not plain:
        return
    levels = [[*GROUPS, *ALONE], list(GROUPS.get(plain[0], ("", {}))[1])]
    for depth, (word, known) in enumerate(zip(plain[:2], levels, strict=False)):
        if known and word not in known and "=" not in word:
            close = get_close_matches(word, known, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else f" There are: {', '.join(known)}."
            output.error(f"`{word}` is not a command of {' '.join(['gym', *plain[:depth]])}.{hint}")
            raise SystemExit(USAGE_ERROR)
        if "=" in word:
            return


def _leaf(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.ArgumentParser:
    """The parser of the command that was asked for."""
    leaf = parser
    for level in (args.group, getattr(args, "command", None)):
        choices = next((a.choices for a in leaf._actions if isinstance(a, argparse._SubParsersAction)), None)
        if level and choices:
            leaf = choices[level]
    return leaf


def _nearest_flag(leaf: argparse.ArgumentParser, word: str) -> str:
    close = get_close_matches(word.split("=")[0], list(leaf._option_string_actions), n=1)
    return f". Did you mean `{close[0]}`?" if close else ""


def _help_for(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    output.data(_leaf(parser, args).format_help())


if __name__ == "__main__":
    raise SystemExit(main())
