"""Help is complete, fits the terminal, and imports nothing heavy."""

import argparse
import importlib
import os
import re
import subprocess
import sys

import pytest

from nemo_gym.cli.dataset import upload
from nemo_gym.cli.env import init
from nemo_gym.cli.main import main
from nemo_gym.cli.parser import GROUPS, TOP_LEVEL_COMMANDS
from nemo_gym.cli.search import KINDS

MODULES = {*(path for _, commands in GROUPS.values() for path in commands.values()), *TOP_LEVEL_COMMANDS.values()}
PRINT_ALL_HELP = """
import contextlib, io, sys
from nemo_gym.cli.main import main
from nemo_gym.cli.parser import GROUPS, TOP_LEVEL_COMMANDS

HEAVY = {"aiohttp", "asyncio", "fastapi", "hydra", "omegaconf", "pydantic", "rich", "starlette", "uvloop", "yaml"}
commands = [(group, name) for group, (_, names) in GROUPS.items() for name in names]
for words in [(), *((group,) for group in GROUPS), *commands, *((name,) for name in TOP_LEVEL_COMMANDS)]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    imported = HEAVY & sys.modules.keys()
    if imported:
        print(" ".join(words), "imports", *sorted(imported))
        break
"""


def test_help_imports_nothing_heavy() -> None:
    """Help must be fast; one careless import in any command makes it take a second."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_ALL_HELP], capture_output=True, text=True, env=env, timeout=120, check=False
    )

    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_option_says_what_it_is_for(module: str) -> None:
    """An option without help is useful only to people who know it."""
    parser = argparse.ArgumentParser(prog="gym list environments")
    importlib.import_module(module).add_arguments(parser)

    silent = [action.option_strings or action.dest for action in parser._actions if not action.help]
    assert not silent


@pytest.mark.parametrize("words", [("--help",), ("eval", "run", "--help"), ("env", "test", "--help")], ids=" ".join)
@pytest.mark.parametrize("columns", ["70", "80", "120"])
def test_help_fits_the_terminal(
    words: tuple[str, ...], columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that the terminal wraps are hard to read."""
    monkeypatch.setenv("COLUMNS", columns)

    with pytest.raises(SystemExit):
        main(words)

    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


VAGUE = re.compile(r"^(the same|which|how|what|where|whether)\b|\bso (many|often)\b|say more", re.IGNORECASE)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_line_of_help_stands_alone(module: str) -> None:
    """Users read one line, not the lines before it."""
    parser = argparse.ArgumentParser(prog="gym list environments")
    importlib.import_module(module).add_arguments(parser)

    vague = [action.option_strings for action in parser._actions if VAGUE.search(action.help or "")]
    assert not vague


def test_examples_in_help_stay_on_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Users copy them."""
    with pytest.raises(SystemExit):
        main(["dataset", "rm", "--help"])

    assert "\n  gym dataset rm --name old_dataset\n" in capsys.readouterr().out


def test_choices_of_flags_agree_with_the_code() -> None:
    """Flags must not import heavy modules, so a few lists exist twice."""
    from nemo_gym.authoring.manifest import PROFILES
    from nemo_gym.catalog.components import EVERY_KIND
    from nemo_gym.data import hub

    assert init.PROFILES == PROFILES
    assert upload.SPLITS == hub.SPLITS
    assert tuple(EVERY_KIND) == KINDS
