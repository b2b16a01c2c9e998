"""One episode of a SkyRL-gym environment; its `step` blocks, which only its own process notices."""

import importlib
import random
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row, episode_function


def prepare() -> None:
    """Import the package once, before the sessions start."""
    importlib.import_module("skyrl_gym")


class SkyRLEpisode(PeerEpisode):
    def start(self, row: Row) -> PeerTurn:
        random.seed(row["seed"])
        config = importlib.import_module("omegaconf").DictConfig(row["arguments"])
        package = importlib.import_module("skyrl_gym")
        self._env: Any = package.make(row["environment"], env_config=config, extras=row["extras"])
        prompt, _ = self._env.init(row["prompt"])
        return PeerTurn(None if prompt == row["prompt"] else _text(prompt))

    def step(self, action: Action) -> PeerTurn:
        output = self._env.step(action.text)
        done = bool(output["done"])
        info = {
            key: value for key, value in (output.get("metadata") or {}).items() if isinstance(value, str | int | float)
        }
        return PeerTurn(
            _text(output["observations"]),
            reward=float(output["reward"]),
            done=done,
            ending="finished" if done else None,
            info=info,
        )

    def close(self) -> None:
        self._env.close()


def _text(messages: list[dict[str, Any]]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages)


play = episode_function(SkyRLEpisode)
