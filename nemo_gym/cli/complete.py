"""What may come next on a `gym` command line."""

import argparse
from collections.abc import Sequence

from nemo_gym import component_search_roots
from nemo_gym.catalog.find import BENCHMARK, ENVIRONMENT, MODEL_TYPE, RESOURCES_SERVER

SHELVES = {shelf.flag: shelf for shelf in (BENCHMARK, ENVIRONMENT, MODEL_TYPE, RESOURCES_SERVER)}
LISTED = {
    "benchmarks": BENCHMARK,
    "environments": ENVIRONMENT,
    "models": MODEL_TYPE,
    "resources-servers": RESOURCES_SERVER,
}


def candidates(before: Sequence[str], begun: str) -> list[str]:
    """Words that may stand after `before` and begin with `begun`: commands, flags, names of components."""
    return sorted(word for word in _possible(list(before), begun) if word.startswith(begun))


def _possible(before: list[str], begun: str) -> Sequence[str]:
    if before and before[-1] in SHELVES:
        return SHELVES[before[-1]].names(component_search_roots())
    if len(before) == 2 and before[0] == "list" and before[1] in LISTED and not begun.startswith("-"):
        return LISTED[before[1]].names(component_search_roots())
    from nemo_gym.cli.main import build_parser  # it knows this module

    parser, _ = build_parser(before)
    leaf: argparse.ArgumentParser = parser
    for word in before:
        leaf = _commands(leaf).get(word, leaf)
    choices = next((a.choices for a in leaf._actions if before and before[-1] in a.option_strings and a.choices), None)
    if choices:
        return [str(choice) for choice in choices]
    return [*leaf._option_string_actions] if begun.startswith("-") else [*_commands(leaf)]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
    return dict(found.choices) if found is not None else {}
