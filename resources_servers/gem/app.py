"""Environments of GEM, which seeds globally and needs Python 3.11."""

from nemo_gym.adapters.server import PeerServer


class GemServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.gem.episode:play"


if __name__ == "__main__":
    GemServer.run_webserver()
