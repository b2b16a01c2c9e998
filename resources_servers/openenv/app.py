"""Environments of OpenEnv: of a running server, or of a package whose server is started for each session."""

from nemo_gym.adapters.server import PeerServer


class OpenEnvServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.openenv.episode:play"


if __name__ == "__main__":
    OpenEnvServer.run_webserver()
