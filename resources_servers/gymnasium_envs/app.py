"""Environments of gymnasium: the observation is text, the action a number in brackets."""

from nemo_gym.adapters.server import PeerServer


class GymnasiumEnvsServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.gymnasium_envs.episode:play"


if __name__ == "__main__":
    GymnasiumEnvsServer.run_webserver()
