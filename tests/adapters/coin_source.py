"""A source for tests, written as a stranger writes one: a game of coins for two players, with faults on request."""

from pathlib import Path

SOURCE = """
package: pytest
description: Take coins; the last one wins.
licence: MIT
max_turns: 9
settings: {player: "0, 1 or alternate", num_players: "2", opponent: "a player"}
"""
APP = """
from nemo_gym.adapters.server import PeerRow, PeerServer


class CoinRow(PeerRow):
    num_players: int = 1


class CoinServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.coins.episode:play"
    ROW = CoinRow


if __name__ == "__main__":
    CoinServer.run_webserver()
"""
EPISODE = """
import os
import random
import time

from nemo_gym.adapters.episodes import PeerEpisode, PeerTurn, episode_function


class CoinEpisode(PeerEpisode):
    def start(self, row):
        random.seed(row["seed"])  # globally, as many packages do
        self.row, self.player = row, 0
        self.coins = random.randint(4, 9)
        if row["arguments"].get("fault") == "start":
            raise ValueError("no coins")
        return self.show()

    def show(self):
        luck = random.randint(0, 10**6)
        return PeerTurn(f"{self.coins} coins, luck {luck}. Available moves: [1] [2]", player=self.player)

    def step(self, action):
        fault = self.row["arguments"].get("fault")
        if fault == "raise":
            raise KeyError("lost coin")
        if fault == "hang":
            time.sleep(3600)
        if fault == "spin":
            while True:
                pass
        if fault == "exit":
            os._exit(7)
        if fault == "memory":
            self.hoard = bytearray(1 << 40)
        if action.text not in ("[1]", "[2]"):
            ending = "illegal_move" if self.player == self.row["player"] else "opponent_illegal_move"
            return self.end(winner=1 - self.player, ending=ending)
        self.coins -= int(action.text[1])
        if self.coins <= 0:
            return self.end(winner=self.player, ending="finished")
        self.player = 1 - self.player
        return self.show()

    def end(self, winner, ending):
        rewards = {winner: 1.0, 1 - winner: -1.0}
        return PeerTurn("over", reward=rewards[self.row["player"]], done=True, ending=ending, rewards=rewards)


play = episode_function(CoinEpisode)
"""
IDS = '{"version": "1", "ids": {"Coins-v0": {"players": 2}, "Notes-v0": {"refused": "it needs paper"}}}'


def write_source(root: Path) -> Path:
    """Write the folder of the source below `root`, a search root."""
    folder = root / "resources_servers" / "coins"
    folder.mkdir(parents=True)
    files = {"source.yaml": SOURCE, "app.py": APP, "episode.py": EPISODE, "ids.json": IDS, "__init__.py": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder
