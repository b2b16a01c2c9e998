"""Environments of SkyRL-gym: the row has the prompt, and what the environment needs to grade."""

from typing import Any

from nemo_gym.adapters.server import PeerRow, PeerServer


class SkyRLRow(PeerRow):
    prompt: list[dict[str, Any]]
    extras: dict[str, Any]
    """The fields of the task that the environment reads, such as `reward_spec`."""


class SkyRLServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.skyrl_gym.episode:play"
    ROW = SkyRLRow


if __name__ == "__main__":
    SkyRLServer.run_webserver()
