"""Errors and the exit status each stands for."""

import pytest

from nemo_gym.cli.eval_session import DidNotStart
from nemo_gym.cli.evaluate import status_of
from nemo_gym.cli.options import UsageError
from nemo_gym.cli.serving import Interrupted
from nemo_gym.data.problems import DataError
from nemo_gym.data.prompt import PromptError
from nemo_gym.errors import AgentFailed, ConfigError, GymError, ServerUnreachable
from nemo_gym.launch.registry import NoRunFound
from nemo_gym.rollouts.jsonl import StoreError
from nemo_gym.rollouts.resume import ResumeRefused


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AgentFailed("no metrics"), 1),
        (ConfigError("a key is wrong"), 2),
        (UsageError("a flag is wrong"), 2),
        (DataError("a row is wrong"), 2),
        (PromptError("a prompt is wrong"), 2),
        (ResumeRefused("another run"), 2),
        (StoreError("the disk is full"), 3),
        (ServerUnreachable("gone"), 3),
        (NoRunFound("none are up"), 3),
        (DidNotStart("no answer"), 3),
        (Interrupted("before the start"), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, GymError) else str(value),
)
def test_an_error_has_the_exit_status_that_is_documented(error: GymError, status: int) -> None:
    """Scripts tell by it whether to correct the command, to call somebody, or to try again."""
    assert status_of(error) == status
