"""The moves of scripted players, read from the observation that lists the moves in brackets."""

import re
from random import Random
from typing import Any

from nemo_gym.keys import FIRST_MOVE, SCRIPT_PREFIX

_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_MOVES_LINE = re.compile(r"(?:available|valid|legal|possible|allowed)\b[^\n:]*:(.*)", re.IGNORECASE)
_TAGS = re.compile(r"\[(?:GAME|Player \d+|\?|Empty| )\]", re.IGNORECASE)


def listed_moves(content: Any) -> list[str]:
    """Return the moves that an observation offers: those after "available moves", else every text in brackets."""
    text = _TAGS.sub(" ", content if isinstance(content, str) else str(content))
    lines = [moves for line in _MOVES_LINE.findall(text) if (moves := _MOVE.findall(line))]
    return lines[-1] if lines else list(dict.fromkeys(_MOVE.findall(text)))


def scripted_action(policy: str, content: Any, random: Random, number: int) -> str:
    """Return the move of a scripted player; `number` counts its turns from 0."""
    if policy.startswith(SCRIPT_PREFIX):
        moves = policy.removeprefix(SCRIPT_PREFIX).split("|")
        return moves[number % len(moves)]
    moves = listed_moves(content)
    if not moves:
        return ""
    return moves[0] if policy == FIRST_MOVE else random.choice(moves)
