"""Simple agent: alternate model turns and tool calls until the model is done, then verify its answer.

The loop is `nemo_gym.authoring.tool_agent`; an agent that differs in one step overrides the method of that step here.
"""

from nemo_gym.authoring.episode_agent import (
    EpisodeRunRequest,
    EpisodeVerifyRequest,
    EpisodeVerifyResponse,
    episode_response,
    verify_request,
)
from nemo_gym.authoring.tool_agent import ToolAgent, ToolAgentConfig, tool_arguments

__all__ = [
    "SimpleAgent",
    "SimpleAgentConfig",
    "SimpleAgentRunRequest",
    "SimpleAgentVerifyRequest",
    "SimpleAgentVerifyResponse",
    "episode_response",
    "tool_arguments",
    "verify_request",
]


class SimpleAgentConfig(ToolAgentConfig):
    pass


SimpleAgentRunRequest, SimpleAgentVerifyRequest, SimpleAgentVerifyResponse = (
    EpisodeRunRequest,
    EpisodeVerifyRequest,
    EpisodeVerifyResponse,
)
"""The names that agents written by others import."""


class SimpleAgent(ToolAgent):
    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie

    config: SimpleAgentConfig


if __name__ == "__main__":
    SimpleAgent.run_webserver()
