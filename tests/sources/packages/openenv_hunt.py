"""An OpenEnv package: a hunt on a line with typed actions, and an echo of text; faults on request."""

import os
import random
import time
from zlib import crc32

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Move(Action):
    """Move along the line."""

    steps: int = Field(ge=-3, le=3, description="how far")
    loud: bool = False


class Sight(Observation):
    place: int = 0
    hint: str = ""


class Hunt(Environment[Move, Sight, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, fault: str = "", **_) -> Sight:
        self.random = random.Random(seed)
        self.fault, self.place, self.moves = fault, 0, 0
        self.goal = self.random.choice([-4, -3, 3, 4])
        return Sight(hint=f"Somewhere from -4 to 4, {self.random.random():.6f}.")

    def step(self, action: Move, timeout_s=None, **_) -> Sight:
        if self.fault == "raise":
            raise KeyError("lost goal")
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "exit":
            os._exit(7)
        self.moves += 1
        self.place += action.steps
        is_there = self.place == self.goal
        hint = (
            "found"
            if is_there
            else f"{'warm' if abs(self.goal - self.place) < 3 else 'cold'} {self.random.random():.6f}"
        )
        return Sight(place=self.place, hint=hint, reward=1.0 if is_there else -0.125, done=is_there or self.moves == 6)

    @property
    def state(self) -> State:
        return State(step_count=self.moves)


class Say(Action):
    message: str


class EchoOfText(Observation):
    text: str = ""


class Echo(Environment[Say, EchoOfText, State]):
    """An echo that plays and rewards even if it was never reset, as many environments do."""

    count, seed = 0, 0

    def reset(self, seed=None, episode_id=None, **_) -> EchoOfText:
        self.count, self.seed = 0, seed
        return EchoOfText(text=f"Say [{seed % 5}] or [{seed % 3}].")

    def step(self, action: Say, timeout_s=None, **_) -> EchoOfText:
        self.count += 1
        return EchoOfText(
            text=f"{action.message} heard, {self.count}", reward=len(action.message) / 8, done=self.count == 3
        )

    @property
    def state(self) -> State:
        return State(step_count=self.count)


def policy(text: str, number: int):
    """Move by the last text and the turn; sometimes with an invalid action, or with two."""
    value = crc32(f"{text}:{number}".encode())
    if value % 7 == 0:
        return {"tool_calls": [{"name": "step", "arguments": {"steps": 9}}]}
    moves = [{"steps": value % 7 - 3}, {"steps": 1, "loud": True}][: 1 + value % 2]
    return {"tool_calls": [{"name": "step", "arguments": move} for move in moves]}


app = create_app(Hunt, Move, Sight, env_name="hunt", max_concurrent_envs=64)
echo = create_app(Echo, Say, EchoOfText, env_name="echo")
