"""One episode of GEM: the action is the text of the model, from which the environment reads its boxed answer."""

import importlib
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row, episode_function


def prepare() -> None:
    """Import the package once, before the sessions start."""
    importlib.import_module("gem")


class GemEpisode(PeerEpisode):
    def start(self, row: Row) -> PeerTurn:
        self._env: Any = importlib.import_module("gem").make(row["environment"], **row["arguments"])
        observation, _ = self._env.reset(seed=row["seed"])
        return PeerTurn(str(observation))

    def step(self, action: Action) -> PeerTurn:
        observation, reward, terminated, truncated, info = self._env.step(action.text)
        return PeerTurn(
            str(observation),
            reward=float(reward),
            done=bool(terminated or truncated),
            truncated=bool(truncated and not terminated),
            ending="finished" if terminated else "truncated" if truncated else None,
            info={key: value for key, value in info.items() if isinstance(value, str | int | float)},
        )


play = episode_function(GemEpisode)
