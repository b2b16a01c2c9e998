"""One episode of a gymnasium environment: actions are numbers in brackets, observations text."""

import importlib
import re
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row, episode_function
from resources_servers.gymnasium_envs.texts import action_help, observation_text

MAX_ILLEGAL = 3
"""Replies without a legal action in a row that end the episode."""
_ACTION = re.compile(r"\[\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\]")


def prepare() -> None:
    """Import the package once, before the sessions start."""
    importlib.import_module("gymnasium")


def make_environment(name: str, arguments: dict[str, Any]) -> Any:
    """Construct an environment that draws itself as text, if it can."""
    package = importlib.import_module("gymnasium")
    module = name.partition(":")[0] if ":" in name else ""
    if module:
        importlib.import_module(module)
    modes = (package.spec(name.partition(":")[2] if module else name).kwargs or {}).get("render_mode")
    if modes is None and _draws_text(package, name):
        arguments = {"render_mode": "ansi", **arguments}
    return package.make(name, **arguments)


def _draws_text(package: Any, name: str) -> bool:
    entry_point = package.spec(name.partition(":")[2] or name).entry_point
    module, _, attribute = str(entry_point).partition(":")
    made = getattr(importlib.import_module(module), attribute) if isinstance(entry_point, str) else entry_point
    return "ansi" in (getattr(made, "metadata", None) or {}).get("render_modes", [])


class GymnasiumEpisode(PeerEpisode):
    def start(self, row: Row) -> PeerTurn:
        self._name = row["environment"]
        self._env = make_environment(self._name, row["arguments"])
        self._illegal = 0
        observation, _ = self._env.reset(seed=row["seed"])
        first = observation_text(self._env, observation)
        return PeerTurn(f"{action_help(self._env, self._name)}\n\n{first}")

    def step(self, action: Action) -> PeerTurn:
        chosen = self._parse_action(action.text)
        if chosen is None:
            return self._refuse()
        self._illegal = 0
        observation, reward, terminated, truncated, _ = self._env.step(chosen)
        ending = "finished" if terminated else "truncated" if truncated else None
        info = {"action": chosen if isinstance(chosen, int) else list(chosen)}
        return PeerTurn(
            observation_text(self._env, observation),
            reward=float(reward),
            done=bool(terminated or truncated),
            truncated=bool(truncated and not terminated),
            ending=ending,
            info=info,
        )

    def close(self) -> None:
        self._env.close()

    def _parse_action(self, text: str) -> Any:
        """Return the last numbers in brackets, if they are a legal action; else None."""
        matches = _ACTION.findall(text)
        if not matches:
            return None
        numbers = [int(number) for number in matches[-1].split(",")]
        space = self._env.action_space
        if space.shape == ():
            return numbers[0] if len(numbers) == 1 and space.contains(numbers[0]) else None
        action = importlib.import_module("numpy").array(numbers, dtype=space.dtype)
        return action if action.shape == space.shape and space.contains(action) else None

    def _refuse(self) -> PeerTurn:
        """Ask for another reply; the environment does not see an illegal action."""
        self._illegal += 1
        if self._illegal < MAX_ILLEGAL:
            return PeerTurn("That is no legal action. " + action_help(self._env, self._name).splitlines()[-1])
        problem = f"{MAX_ILLEGAL} replies without a legal action: the episode is over."
        return PeerTurn(problem, done=True, truncated=True, ending="illegal_move")


play = episode_function(GymnasiumEpisode)
