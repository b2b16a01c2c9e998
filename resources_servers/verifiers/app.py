"""Environments of verifiers with the API of 0.3 and earlier: packages with a function `load_environment`."""

from typing import Any

from nemo_gym.adapters.server import PeerRow, PeerServer


class VerifiersRow(PeerRow):
    example: dict[str, Any]
    """A row of the environment's dataset: prompt, answer, info."""


class VerifiersServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.verifiers.episode:play"
    ROW = VerifiersRow
    GRADES_AT_END = True


if __name__ == "__main__":
    VerifiersServer.run_webserver()
