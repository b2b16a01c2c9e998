"""Asking for help costs nothing: what a command works with is imported when it works."""

import argparse
import importlib
import os
import subprocess
import sys

import pytest

from nemo_gym.cli import dataset_upload, doctor, env_init, listing_flags
from nemo_gym.cli.main import ALONE, GROUPS, main

ASK_EVERYTHING = """
import contextlib, io, sys
from nemo_gym.cli.main import ALONE, GROUPS, main

HEAVY = {"aiohttp", "asyncio", "fastapi", "hydra", "omegaconf", "pydantic", "rich", "starlette", "uvloop", "yaml"}
commands = [(group, name) for group, (_, names) in GROUPS.items() for name in names]
for words in [(), *((group,) for group in GROUPS), *commands, *((name,) for name in ALONE)]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    found = HEAVY & sys.modules.keys()
    if found:
        print(" ".join(words), "imports", *sorted(found))
        break
"""


def test_help_imports_nothing_heavy() -> None:
    """Help that takes a second is help nobody asks for; one careless import in any command is enough."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    done = subprocess.run(
        [sys.executable, "-c", ASK_EVERYTHING], capture_output=True, text=True, env=env, timeout=120, check=False
    )

    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("module", [*(path for _, c in GROUPS.values() for path in c.values()), *ALONE.values()])
def test_every_option_says_what_it_is_for(module: str) -> None:
    """An option without a word beside it can only be found by people who know it."""
    parser = argparse.ArgumentParser(prog="x")
    importlib.import_module(module).add_arguments(parser)

    silent = [action.option_strings or action.dest for action in parser._actions if not action.help]
    assert not silent


@pytest.mark.parametrize("words", [("--help",), ("eval", "run", "--help"), ("env", "test", "--help")], ids=" ".join)
@pytest.mark.parametrize("columns", ["70", "80", "120"])
def test_help_fits_the_terminal(
    words: tuple[str, ...], columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text that a terminal breaks in the middle of words is not read."""
    monkeypatch.setenv("COLUMNS", columns)

    with pytest.raises(SystemExit):
        main(words)

    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_examples_in_help_stay_on_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """They are there to be copied."""
    with pytest.raises(SystemExit):
        main(["dataset", "rm", "--help"])

    assert "\n  gym dataset rm --name old_dataset\n" in capsys.readouterr().out


def test_choices_that_flags_repeat_are_those_of_the_code() -> None:
    """Flags must not import what they are about, so the few lists they need are written twice."""
    from nemo_gym.catalog.components import EVERY_KIND
    from nemo_gym.cli.checkup import Level
    from nemo_gym.data import hub
    from nemo_gym.environment.manifest import PROFILES

    assert env_init.PROFILES == PROFILES
    assert dataset_upload.SPLITS == hub.SPLITS
    assert tuple(EVERY_KIND) == listing_flags.KINDS
    assert {f"{level}" for level in Level} == doctor.MARKS.keys()
