"""Environments of Aviary: the tools are discovered when an episode begins."""

from pydantic import Field

from nemo_gym.adapters.server import PeerRow, PeerServer


class AviaryRow(PeerRow):
    index: int | None = Field(default=None, ge=0)
    """The number of the task, if the environment comes from a `TaskDataset`."""


class AviaryServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.aviary.episode:play"
    ROW = AviaryRow


if __name__ == "__main__":
    AviaryServer.run_webserver()
