"""ReAct agent: tool calls in plain text, for models without tool calling.

The model sees the tools as text and writes `Thought:`, `Action:` and `Action Input:`; the output of the tool is the
next `Observation:`. The record has what the texts mean: reasoning, function calls and messages, as verifiers read them.
"""

from collections.abc import Sequence
from typing import Any

from nemo_gym.authoring.episode_agent import EpisodeSession
from nemo_gym.authoring.tool_agent import ToolAgent, ToolAgentConfig
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.wire.base import replace_fields
from responses_api_agents.react_agent.protocol import Transcript, parse_turn, protocol_text, with_explanation


class ReactAgentConfig(ToolAgentConfig):
    instructions: str | None = None
    """The explanation of the protocol, in which `{tools}` is replaced by the tools; by default that of `protocol`."""


class ReactAgent(ToolAgent):
    HOSTING = "cell"

    config: ReactAgentConfig

    async def next_turn(
        self,
        params: NeMoGymResponseCreateParamsNonStreaming,
        items: Sequence[Any],
        model_path: str,
        session: EpisodeSession,
    ) -> NeMoGymResponse:
        """Send the conversation as text without tools, and return the response with the call that its text asks for."""
        if not params.tools:
            return await super().next_turn(params, items, model_path, session)
        transcript = session.state = session.state or Transcript()
        explanation = protocol_text(params.tools, self.config.instructions)
        text_params = replace_fields(params, tools=[], tool_choice="none", parallel_tool_calls=False)
        prompt = with_explanation(transcript.as_text(items), explanation)
        response = await super().next_turn(text_params, prompt, model_path, session)
        if params.tool_choice == "none":  # a summary for compaction
            return response
        return replace_fields(
            response, output=transcript.add(parse_turn(response.output, len(session.turns)), response)
        )


if __name__ == "__main__":
    ReactAgent.run_webserver()
