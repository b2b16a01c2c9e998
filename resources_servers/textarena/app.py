"""Games of TextArena: the policy is one player, a script or another model plays the others."""

from pydantic import Field

from nemo_gym.adapters.server import PeerRow, PeerServer


class TextArenaRow(PeerRow):
    num_players: int = Field(default=1, ge=1)


class TextArenaServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.textarena.episode:play"
    ROW = TextArenaRow


if __name__ == "__main__":
    TextArenaServer.run_webserver()
