"""Tasksets of verifiers with the API of 0.4: their tasks, tools and rewards."""

from pydantic import Field

from nemo_gym.adapters.server import PeerRow, PeerServer


class TasksetRow(PeerRow):
    index: int = Field(ge=0)
    """The position of the task in its taskset."""
    key: str
    """The identity of the task in its package."""


class TasksetServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.verifiers_v1.episode:play"
    ROW = TasksetRow
    GRADES_AT_END = True


if __name__ == "__main__":
    TasksetServer.run_webserver()
