"""One game of TextArena. It seeds the global generator, which is why every session has a process."""

import importlib
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row, episode_function


def prepare() -> None:
    """Import the package once, before the sessions start."""
    importlib.import_module("textarena")


class TextArenaEpisode(PeerEpisode):
    def start(self, row: Row) -> PeerTurn:
        self._policy = int(row["player"])
        self._shown: dict[int, str] = {}
        self._env = importlib.import_module("textarena").make(row["environment"], **row["arguments"])
        self._env.reset(num_players=row["num_players"], seed=row["seed"])
        return self._observe()

    def step(self, action: Action) -> PeerTurn:
        done, info = self._env.step(action=action.text)
        return self._final_turn() if done else self._observe(info)

    def _observe(self, info: dict[str, Any] | None = None) -> PeerTurn:
        """Return what the next player sees; a text that repeats what it has seen is shown from there on."""
        player, observation = self._env.get_observation()
        text = observation if isinstance(observation, str) else "\n".join(str(message) for _, message, _ in observation)
        shown = self._shown.get(player, "")
        self._shown[player] = text
        return PeerTurn(
            text.removeprefix(shown).lstrip("\n") if shown else text, player=player, info=_json_facts(info or {})
        )

    def _final_turn(self) -> PeerTurn:
        rewards, game_info = self._env.close()
        rewards = {int(player): float(reward) for player, reward in (rewards or {}).items()}
        illegal = [player for player, facts in game_info.items() if facts.get("invalid_move")]
        ending = "finished"
        if illegal:
            ending = "illegal_move" if self._policy in illegal else "opponent_illegal_move"
        facts = game_info.get(self._policy, {})
        content = str(facts.get("reason") or "The game is over.")
        return PeerTurn(
            content,
            reward=rewards.get(self._policy, 0.0),
            done=True,
            ending=ending,
            player=self._policy,
            rewards=rewards,
            info=_json_facts({"role": facts.get("role"), "turn_count": facts.get("turn_count"), "reason": content}),
        )


def _json_facts(info: dict[Any, Any]) -> dict[str, Any]:
    """Return the facts that JSON has."""
    return {str(key): value for key, value in info.items() if value is None or isinstance(value, str | int | float)}


play = episode_function(TextArenaEpisode)
