"""Tasks of Inspect: solver and scorers are the package's, the model is ours."""

from typing import Any, Self

from pydantic import model_validator

from nemo_gym.adapters.server import PeerRow, PeerServer


class InspectRow(PeerRow):
    sample: dict[str, Any]
    """A sample of the task's dataset."""
    scorer: str | None = None
    """The score that is the reward, `SCORER` or `SCORER.KEY`; by default the first."""
    grader: str | None = None
    """The model server that scorers ask."""

    @model_validator(mode="after")
    def _grader_answers(self) -> Self:
        """Let the server ask the grader where it would ask another player."""
        self.opponent = self.grader or self.opponent
        return self


class InspectServer(PeerServer):
    HOSTING = "cell"
    EPISODES = "resources_servers.inspect.episode:play"
    ROW = InspectRow
    GRADES_AT_END = True


if __name__ == "__main__":
    InspectServer.run_webserver()
