"""Structured output: the reply is right when all of it is data of the asked format and fits the schema."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, field_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.schema import schema_problems, strict, violations
from nemo_gym.grading.structured import Malformed, fenced_blocks
from nemo_gym.grading.verdict import Unparsed
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics
from resources_servers.structured_outputs.reading import Format, read

ErrorType = Literal["empty", "schema", "parse", "validation"]
"""`schema` is known to readers of older results; here a broken schema is a 422."""


class StructuredOutputsConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    coerce_xml: bool = True
    """XML knows only text: read numbers and booleans where the schema asks for them."""
    allow_fence: bool = False
    """Accept a reply that is one fenced block."""


class StructuredOutputsRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    schema_str: str
    """JSON Schema, as text."""
    schema_type: Format = "json"
    """The format to answer in."""
    response_mode: Literal["text", "tool_call"] = "text"
    """`tool_call`: the arguments of the one tool call are graded instead of the text."""

    @field_validator("schema_str")
    @classmethod
    def _is_a_schema(cls, value: str) -> str:
        try:
            schema = json.loads(value)
        except ValueError as problem:
            raise ValueError(f"not JSON: {problem}") from None
        if problems := schema_problems(schema):
            raise ValueError("; ".join(problems[:3]))
        return value


class StructuredOutputsVerifyRequest(StructuredOutputsRunRequest, BaseVerifyRequest):
    pass


class StructuredOutputsVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    schema_str: str
    schema_type: Format
    error_type: ErrorType | None = None
    error_message: str | None = None


class Refused(Exception):
    """The reply is not what was asked for."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class StructuredOutputsServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: StructuredOutputsConfig

    async def verify(self, body: StructuredOutputsVerifyRequest) -> StructuredOutputsVerifyResponse:
        graded: dict[str, Any] = {"reward": 1.0, "error_type": None, "error_message": None}
        try:
            self.check(body)
        except Refused as refused:
            graded = {"reward": 0.0, "error_type": refused.error_type, "error_message": str(refused)}
        return StructuredOutputsVerifyResponse(**(body.model_dump() | graded))

    def check(self, body: StructuredOutputsVerifyRequest) -> None:
        """Raise `Refused` unless the reply is data that fits."""
        schema = strict(json.loads(body.schema_str))
        by_call = body.response_mode == "tool_call"
        text = only_call(body.response) if by_call else self.said(body.response)
        try:
            value = read(text, "json" if by_call else body.schema_type, schema, coerce_xml=self.config.coerce_xml)
        except Malformed as problem:
            raise Refused("parse", str(problem)) from None
        if problems := violations(value, schema):
            raise Refused("validation", "; ".join(problems))

    def said(self, response: NeMoGymResponse) -> str:
        """The text of the last message, reasoning stripped."""
        found = last_assistant_text(response)
        if isinstance(found, Unparsed):
            raise Refused("empty", found.reason)
        text = found.value.strip()
        if self.config.allow_fence and text.startswith("```"):
            blocks = list(fenced_blocks(text))
            if len(blocks) == 1 and text[blocks[0].span[1] :].strip() == "```":
                return blocks[0].value
        return text

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "schema_type")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


def only_call(response: NeMoGymResponse) -> str:
    """The arguments of the one tool call of a reply."""
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    if not calls:
        raise Refused("empty", "there is no tool call")
    if len(calls) > 1:
        raise Refused("parse", f"there are {len(calls)} tool calls, one is asked for")
    return calls[0].arguments


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(StructuredOutputsServer),
    request_model=StructuredOutputsVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    StructuredOutputsServer.run_webserver()
