"""Policies that the scripted model and a package's own loop follow alike: the last observation decides."""

import importlib
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from responses_api_models.scripted_model.script import Scene

ANSWERS_VARIABLE = "GYM_TEST_ANSWERS"
"""A JSON file with the answer to each prompt, or the list of replies to give."""
_TOKENS = re.compile(r"\[([^\[\]\n]{1,20})\]")
_NO_MOVES = re.compile(r"GAME|Player|player|\?")


def choose(observation: str, number: int) -> str:
    """Choose one of the last texts in brackets; the choice depends on the end of the observation and the turn."""
    end = observation[-400:]
    tokens = [token for token in _TOKENS.findall(end) if not _NO_MOVES.search(token)][-9:]
    value = crc32(f"{end}:{number}".encode())
    return f"I play [{tokens[value % len(tokens)]}]" if tokens else f"I play [{value % 4}] \\boxed{{{value % 10}}}"


def choose_number(observation: str, number: int) -> str:
    """Choose 0 or 1; the choice depends on the whole observation and the turn."""
    return f"[{crc32(f'{observation}:{number}'.encode()) % 2}]"


def choose_wrongly(observation: str, number: int) -> str:
    """Say what no environment expects."""
    return "I do not play."


@cache
def _answers() -> Any:
    return json.loads(Path(os.environ[ANSWERS_VARIABLE]).read_text())


def play(scene: Scene) -> Any:
    """Return the reply of the policy that the environment variable GYM_TEST_POLICY names."""
    message = scene.conversation[-1]
    last = message.get("content", message.get("output", ""))
    text = last if isinstance(last, str) else "".join(part.get("text", "") for part in last)
    policy = os.environ.get("GYM_TEST_POLICY", "choose")
    if policy == "answers":
        return _answers()[text]
    if policy == "replies":
        replies = _answers()
        return replies[scene.number % len(replies)]
    if ":" in policy:
        module, _, name = policy.partition(":")
        return getattr(importlib.import_module(module), name)(text, scene.number)
    return {"choose": choose, "choose_number": choose_number}[policy](text, scene.number)
