"""User simulation agent: a second model plays the user, who answers the messages of the agent until satisfied.

The conversation ends when the user writes the stop text, or after `max_user_turns`. The user sees the messages of the
conversation and its own instructions, but neither the tools nor their outputs; the agent never sees the instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from nemo_gym.authoring.episode_agent import (
    EpisodeRunRequest,
    EpisodeSession,
    EpisodeVerifyRequest,
    EpisodeVerifyResponse,
    has_invocation,
    model_limit,
    prompt_items,
    record_invocation,
    text_message,
)
from nemo_gym.authoring.tool_agent import ROOT, ToolAgent, ToolAgentConfig
from nemo_gym.config_types import ModelServerRef
from nemo_gym.errors import AgentFailed
from nemo_gym.grading.extraction import assistant_texts
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
)
from nemo_gym.rollout_correlation import current_rollout_id, rollout_context

USER = "user"
"""The id of the user's invocation, and the field of the record with the facts about the user."""
INSTRUCTIONS = """You play a user who talks to an assistant. Stay in this role; write only what the user would say.

{instructions}

Reveal what you know only when it is needed. When your request is settled, or cannot be settled, write {stop}."""


@dataclass
class SimulatedUser:
    """The user of one episode."""

    instructions: str
    turns: int = 0
    is_satisfied: bool = False
    """The user wrote the stop text."""
    input_tokens: int = 0
    output_tokens: int = 0
    conversation: list[Any] = field(default_factory=list)
    """What the model that plays the user saw and wrote last."""


class UserSimulationAgentConfig(ToolAgentConfig):
    user_model_server: ModelServerRef | None = None
    """The model that plays the user; by default the model of the agent."""
    instructions: str = INSTRUCTIONS
    """The system message of the user's model; `{instructions}` and `{stop}` are replaced."""
    instructions_field: str = "user_instructions"
    """The field of the row with the instructions of its user."""
    default_instructions: str = "You want help with what you asked first."
    """Instructions of rows without any."""
    stop: str = "###STOP###"
    max_user_turns: int = Field(default=20, ge=1)
    """Messages of the user after which the conversation ends."""


class UserSimulationAgent(ToolAgent):
    HOSTING = "cell"

    config: UserSimulationAgentConfig

    async def open_episode(self, reply: Any, body: EpisodeRunRequest, session: EpisodeSession) -> EpisodeRunRequest:
        """Prepare the user of the row; a row without a message of a user begins with one of the simulated user."""
        body = await super().open_episode(reply, body, session)
        text = (body.model_extra or {}).get(self.config.instructions_field) or self.config.default_instructions
        if not isinstance(text, str):
            field_name = self.config.instructions_field
            raise AgentFailed(f"{field_name} of the row is not a text", where=self.config.name)
        session.state, session.invocation_id = self.new_user(text), ROOT
        params = body.responses_create_params
        items = [] if isinstance(params.input, str) else list(params.input)
        if params.input and (not items or any(getattr(item, "role", None) == "user" for item in items)):
            return body
        first = await self._user_message(items, session)
        if not first:
            raise AgentFailed("the simulated user wrote no first message", where=self.config.name)
        return body.model_copy(
            update={"responses_create_params": params.model_copy(update={"input": [*items, *first]})}
        )

    async def answer_message(self, items: Sequence[Any], session: EpisodeSession) -> list[Any]:
        """Return the user's answer; empty if the user is satisfied or has said enough."""
        session.state = session.state or self.new_user(self.config.default_instructions)
        return await self._user_message(items, session)

    async def verify_episode(self, body: EpisodeVerifyRequest, session: EpisodeSession) -> EpisodeVerifyResponse:
        """Verify the conversation, and add the facts about the user to the record."""
        user: SimulatedUser = session.state
        if not has_invocation(session, ROOT):  # compaction has recorded it
            record_invocation(session, ROOT, [*prompt_items(body.responses_create_params.input), *body.response.output])
        if not has_invocation(session, USER):
            record_invocation(session, USER, user.conversation, parent=ROOT)
        facts = {"turns": user.turns, "is_satisfied": user.is_satisfied}
        tokens = {"input_tokens": user.input_tokens, "output_tokens": user.output_tokens}
        return (await super().verify_episode(body, session)).model_copy(update={"simulated_user": facts | tokens})

    def new_user(self, text: str) -> SimulatedUser:
        """Return a user with the instructions of a row."""
        text = self.config.instructions.replace("{instructions}", text).replace("{stop}", self.config.stop)
        return SimulatedUser(text)

    async def _user_message(self, items: Sequence[Any], session: EpisodeSession) -> list[Any]:
        """Ask the user's model for the next message.

        Raises:
            AgentFailed: it wrote none. The agent did nothing wrong, so this is no end of the conversation.
        """
        user: SimulatedUser = session.state
        if user.turns == self.config.max_user_turns:
            return []
        server = (self.config.user_model_server or self.config.model_server).name
        seen = seen_by_user(items)
        params = NeMoGymResponseCreateParamsNonStreaming(instructions=user.instructions, input=seen)
        caller, session.invocation_id = session.invocation_id, USER
        try:  # the tokens of the user are not those of the policy
            with rollout_context(current_rollout_id(), token_capture=False):
                response = await self.ask_model("/v1/responses", params, session, server)
        finally:
            session.invocation_id = caller
        text = "" if model_limit(response) else "\n\n".join(assistant_texts(response)).strip()
        if not text:
            raise AgentFailed("the model that plays the user wrote nothing", where=server)
        self._count(user, response)
        user.conversation = [
            text_message("system", user.instructions),
            *seen,
            *response.output,
        ]
        user.is_satisfied = self.config.stop in text
        text = text.replace(self.config.stop, "").strip()
        return [] if user.is_satisfied else [text_message("user", text)]

    def _count(self, user: SimulatedUser, response: NeMoGymResponse) -> None:
        user.turns += 1
        if response.usage is not None:
            user.input_tokens += response.usage.input_tokens
            user.output_tokens += response.usage.output_tokens


def seen_by_user(items: Sequence[Any]) -> list[Any]:
    """Return the messages of a conversation with exchanged roles: the agent's are those that the user answers."""
    messages: list[Any] = []
    for item in items:
        role = "assistant" if isinstance(item, NeMoGymResponseOutputMessage) else getattr(item, "role", None)
        if role == "assistant":
            messages.append(text_message("user", text_of(item.content)))
        elif role == "user":
            messages.append(text_message("assistant", text_of(item.content)))
    return messages or [text_message("user", "Hello! How can I help you?")]


def text_of(content: Any) -> str:
    """Return the texts of a content; its parts have types that only messages of the same role may have."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content or ())
    return "".join(text for text in texts if isinstance(text, str))


if __name__ == "__main__":
    UserSimulationAgent.run_webserver()
