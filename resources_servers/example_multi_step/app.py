"""Synonym values: look up one value per synonym, then submit them all, in order, in one call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    normalize_tool_name,
)
from nemo_gym.openai_utils import NeMoGymFunctionCallOutput, NeMoGymResponseFunctionToolCall
from nemo_gym.wire.call_reply import parse_tool_arguments

LOOKUP, SUBMIT = "get_synonym_value", "extract_synonym_values"


class GetSynonymValueRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    synonym: str


class GetSynonymValueResponse(BaseModel):
    synonym: str
    synonym_value: int


class ExtractSynonymValuesRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    synonym_values: list[StrictInt]


class ExtractSynonymValuesResponse(BaseModel):
    success: bool


Arguments = TypeVar("Arguments", GetSynonymValueRequest, ExtractSynonymValuesRequest)


def normalize_word(word: str) -> str:
    return word.strip().casefold()


def value_of(synonym: str) -> int:
    """Return the value of a word: the sum of its code points, as in existing rows and stored rollouts."""
    return sum(map(ord, synonym.strip()))


@dataclass(frozen=True)
class Steps:
    """The tool calls of a conversation."""

    submissions: Sequence[list[int] | None]
    """The values of every submission; None where the arguments could not be read."""
    looked_up: frozenset[str]
    """Words whose value had come back before the first submission."""


def parse_arguments(call: NeMoGymResponseFunctionToolCall, kind: type[Arguments]) -> Arguments | None:
    """Return the arguments as the tool reads them, or None if it would refuse them."""
    try:
        return kind.model_validate(parse_tool_arguments(call.arguments))
    except ValueError:  # also pydantic's ValidationError
        return None


def read_steps(output: Iterable[Any]) -> Steps:
    """Read the tool calls in the order they were made.

    A word counts as looked up when the tool's answer precedes the submission: a submission made in the same turn as the
    lookup is a guess.
    """
    words: dict[str, str] = {}  # by call id
    looked_up: set[str] = set()
    submissions: list[list[int] | None] = []
    for item in output:
        if isinstance(item, NeMoGymFunctionCallOutput) and not submissions:
            looked_up |= {words[item.call_id]} if item.call_id in words else set()
        elif isinstance(item, NeMoGymResponseFunctionToolCall):
            tool = normalize_tool_name(item.name)
            if tool == SUBMIT:
                submitted = parse_arguments(item, ExtractSynonymValuesRequest)
                submissions.append(submitted.synonym_values if submitted else None)
            elif tool == LOOKUP and (lookup := parse_arguments(item, GetSynonymValueRequest)):
                words[item.call_id] = normalize_word(lookup.synonym)
    return Steps(submissions, frozenset(looked_up))


class MultiStepConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class MultiStepRunRequest(BaseRunRequest):
    expected_synonyms: list[str] = Field(min_length=1)


class MultiStepVerifyRequest(MultiStepRunRequest, BaseVerifyRequest):
    pass


class MultiStepVerifyResponse(MultiStepVerifyRequest, BaseVerifyResponse):
    expected_synonym_values: list[int]
    submitted_values: list[int] | None
    """The values of the last submission; None without a readable one."""
    submissions: int
    looked_up: float
    """Share of the synonyms whose value had come back before the first submission."""
    overlap: float
    """Share of the expected values found in the submission."""
    is_reordered: bool
    """The right values in a wrong order."""


class MultiStepServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: MultiStepConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post(f"/{LOOKUP}")(self.get_synonym_value)
        app.post(f"/{SUBMIT}")(self.extract_synonym_values)
        return app

    async def get_synonym_value(self, body: GetSynonymValueRequest) -> GetSynonymValueResponse:
        """Tell the value of one synonym."""
        return GetSynonymValueResponse(synonym=body.synonym, synonym_value=value_of(body.synonym))

    async def extract_synonym_values(self, body: ExtractSynonymValuesRequest) -> ExtractSynonymValuesResponse:  # noqa: ARG002
        """Submit the values of all synonyms, in order. Can be done once."""
        return ExtractSynonymValuesResponse(success=True)  # not graded here: feedback would turn the task into a search

    async def verify(self, body: MultiStepVerifyRequest) -> MultiStepVerifyResponse:
        """Give the full reward for one submission of exactly the expected values, each of them looked up before."""
        steps = read_steps(body.response.output)
        expected = [value_of(word) for word in body.expected_synonyms]
        submitted = steps.submissions[-1] if steps.submissions else None
        looked_up = [normalize_word(word) in steps.looked_up for word in body.expected_synonyms]
        is_correct = len(steps.submissions) == 1 and submitted == expected and all(looked_up)
        return MultiStepVerifyResponse(
            **dict(body),
            expected_synonym_values=expected,
            submitted_values=submitted,
            submissions=len(steps.submissions),
            looked_up=sum(looked_up) / len(looked_up),
            overlap=sum(value in (submitted or ()) for value in expected) / len(expected),
            is_reordered=submitted != expected and sorted(submitted or ()) == sorted(expected),
            reward=float(is_correct),
        )


# The names of these classes in NeMo Gym, for folders that import or subclass them.
ExampleMultiStepResourcesServer = MultiStepServer
ExampleMultiStepResourcesServerConfig = MultiStepConfig


if __name__ == "__main__":
    MultiStepServer.run_webserver()
