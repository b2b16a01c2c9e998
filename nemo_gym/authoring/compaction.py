"""Context compaction: continue an episode with a summary when the window of the model is full.

The model writes the summary itself. What follows is a new segment that begins with the prompt of the row and the
summary. The items of all segments stay in the response, and every segment is recorded with what the model saw of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.authoring.episode_agent import EpisodeSession, model_limit, record_invocation, text_message
from nemo_gym.grading.extraction import assistant_texts
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseUsage,
)
from nemo_gym.wire.base import replace_fields
from nemo_gym.wire.observations import ContextCompactionObservation, ObservedStatus

INSTRUCTION = (
    "The context is almost full. Write a summary from which the task can be continued without the conversation so far: "
    "what was asked, what has been done and learned, and what is left to do. Do not call a tool."
)
CONTINUATION = "This is a summary of the conversation so far, which is no longer visible:\n\n{summary}\n\nContinue."

Trigger = Literal["threshold", "context_length"]
Ask = Callable[[Sequence[Any]], Awaitable[NeMoGymResponse]]
"""Sends items to the model, with tool calls switched off."""


class CompactionConfig(BaseModel):
    """When the context is compacted, and how."""

    model_config = ConfigDict(extra="forbid")

    at_tokens: int = Field(ge=1)
    """Input and output tokens of one turn from which on the context is compacted before the next turn."""
    max_compactions: int = Field(default=10, ge=1)
    """Compactions per episode; after these a full window is the limit `context_length`."""
    max_output_characters: int = Field(default=2000, ge=1)
    """Length of each tool output in the request for a summary, if the conversation itself no longer fits."""
    instruction: str = INSTRUCTION
    """The message that asks the model for a summary."""
    continuation: str = CONTINUATION
    """The message that begins the next segment; `{summary}` is replaced."""


@dataclass
class ContextWindow:
    """What the model sees of an episode: the prompt of the row and the items of the current segment."""

    prompt: list[Any]
    items: list[Any] = field(default_factory=list)
    """The items of all segments."""
    start: int = 0
    """The first item of the current segment."""
    compactions: int = 0
    name: str = ""
    """The first invocation id; the ones of later segments add a number."""
    summaries: list[range] = field(default_factory=list)
    """The indexes of the items that compactions added: request, summary and continuation."""

    def visible(self) -> list[Any]:
        """Return the input of the next model call."""
        return [*self.prompt, *self.items[self.start :]]

    def conversation(self) -> list[Any]:
        """Return the prompt and the items of all segments, without those that compactions added."""
        added = {index for indexes in self.summaries for index in indexes}
        return [*self.prompt, *(item for index, item in enumerate(self.items) if index not in added)]

    async def compact(
        self, config: CompactionConfig, trigger: Trigger, ask: Ask, session: EpisodeSession
    ) -> NeMoGymResponse | None:
        """Let the model summarize the segment and begin a new one; return the response with the summary.

        Return None, with the window still full, if there is nothing to summarize, `max_compactions` is reached or the
        model gives no complete summary; the caller ends the episode at its limit.
        """
        if self.compactions == config.max_compactions or self.start == len(self.items):
            return None
        request = text_message("user", config.instruction)
        visible = self.visible()
        response = await ask([*visible, request]) if trigger == "threshold" else None
        if response is None or model_limit(response):
            visible = shorten_outputs(visible, config.max_output_characters)
            response = await ask([*visible, request])
        summary = "" if model_limit(response) else "\n\n".join(assistant_texts(response)).strip()
        has_calls = any(isinstance(item, NeMoGymResponseFunctionToolCall) for item in response.output)
        if not summary or has_calls or response.incomplete_details:
            return None
        message = text_message("user", config.continuation.replace("{summary}", summary))
        self._record(session, trigger, summary, [*visible, request, *response.output], response.usage)
        begin = len(self.items)
        self.items += [request, *response.output, message]
        self.summaries.append(range(begin, len(self.items)))
        self.start = len(self.items) - 1
        return response

    def _record(
        self,
        session: EpisodeSession,
        trigger: Trigger,
        summary: str,
        conversation: list[Any],
        usage: NeMoGymResponseUsage | None,
    ) -> None:
        """Record the segment that ends and its compaction, and name the next one."""
        segment = session.invocation_id or "root"
        self.name = self.name or segment
        self.compactions += 1
        self.record_segment(session, conversation)
        observation = ContextCompactionObservation(
            invocation_id=segment,
            trigger=trigger,
            tokens_before=usage.input_tokens if usage else None,
            tokens_after=usage.output_tokens if usage else None,
            outcome="completed",
            summary=summary,
        )
        session.observations.append(observation)
        session.invocation_id = f"{self.name}-segment-{self.compactions + 1}"

    def record_segment(self, session: EpisodeSession, conversation: Sequence[Any] | None = None) -> None:
        """Record the current segment; its parent is the one before it."""
        segment = session.invocation_id or "root"
        number = int(segment.rpartition("-segment-")[2]) if "-segment-" in segment else 1
        before = f"{self.name}-segment-{number - 1}" if number > 2 else self.name
        items = self.visible() if conversation is None else conversation
        status: ObservedStatus = "incomplete" if session.limit else "completed"
        record_invocation(session, segment, items, parent=before if number > 1 else None, status=status)


def shorten_outputs(items: Sequence[Any], characters: int) -> list[Any]:
    """Return items with long texts of tool outputs cut in the middle, which say how much is missing."""

    def shorten(item: Any) -> Any:
        """Return an item with at most `characters` of its output."""
        text = item.output if isinstance(item, NeMoGymFunctionCallOutput) else None
        if not isinstance(text, str) or len(text) <= characters:
            return item
        head, tail = characters - characters // 2, characters // 2
        cut = f"{text[:head]}\n[{len(text) - characters} characters removed]\n{text[len(text) - tail :]}"
        return replace_fields(item, output=cut)

    return [shorten(item) for item in items]
