"""Structured output: the reply is right when all of it is data in the requested format that fits the schema."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, field_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.grading.data_formats import MalformedData
from nemo_gym.grading.extraction import fenced_blocks, last_assistant_text
from nemo_gym.grading.result_types import NoAnswer
from nemo_gym.grading.schema import find_violations, make_strict, schema_problems
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, headline_metrics
from resources_servers.structured_outputs.reading import Format, parse_reply

ErrorType = Literal["empty", "schema", "parse", "validation"]
"""`schema` occurs only in older results: a row with a broken schema is now refused with status 422."""


class StructuredOutputsConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    coerce_xml: bool = True
    """Convert text in XML to numbers and booleans where the schema requires them."""
    allow_fence: bool = False
    """Accept a reply that is one fenced block."""


class StructuredOutputsRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    schema_str: str
    """JSON Schema, as text."""
    schema_type: Format = "json"
    """The format to answer in."""
    response_mode: Literal["text", "tool_call"] = "text"
    """`tool_call`: the arguments of the only tool call are graded instead of the text."""
    tool_payload_key: str | None = None
    """The argument of the tool call that contains the data; None: the arguments are the data."""

    @field_validator("schema_str")
    @classmethod
    def _check_schema(cls, value: str) -> str:
        try:
            schema = without_nullable(json.loads(value))
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


class ReplyError(Exception):
    """The reply is not data that fits the schema."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class StructuredOutputsServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: StructuredOutputsConfig

    async def verify(self, body: StructuredOutputsVerifyRequest) -> StructuredOutputsVerifyResponse:
        verdict: dict[str, Any] = {"reward": 1.0, "error_type": None, "error_message": None}
        try:
            self.check_reply(body)
        except ReplyError as error:
            verdict = {"reward": 0.0, "error_type": error.error_type, "error_message": str(error)}
        return StructuredOutputsVerifyResponse(**(body.model_dump() | verdict))

    def check_reply(self, body: StructuredOutputsVerifyRequest) -> None:
        """Check that the reply is data that fits the schema.

        Raises:
            ReplyError: the reply does not fit.
        """
        schema = make_strict(without_nullable(json.loads(body.schema_str)))
        by_call = body.response_mode == "tool_call"
        text = single_call_arguments(body.response) if by_call else self.reply_text(body.response)
        try:
            value = parse_reply(
                text, "json" if by_call else body.schema_type, schema, coerce_xml=self.config.coerce_xml
            )
        except MalformedData as problem:
            raise ReplyError("parse", str(problem)) from None
        if by_call and body.tool_payload_key is not None:
            if not isinstance(value, dict) or body.tool_payload_key not in value:
                raise ReplyError("parse", f"the tool call has no argument {body.tool_payload_key!r}")
            value = value[body.tool_payload_key]
        if problems := find_violations(value, schema):
            raise ReplyError("validation", "; ".join(problems))

    def reply_text(self, response: NeMoGymResponse) -> str:
        """Return the text of the last message without its reasoning."""
        message = last_assistant_text(response)
        if isinstance(message, NoAnswer):
            raise ReplyError("empty", message.reason)
        text = message.value.strip()
        if self.config.allow_fence and text.startswith("```"):
            blocks = list(fenced_blocks(text))
            if len(blocks) == 1 and text[blocks[0].span[1] :].strip() == "```":
                return blocks[0].value
        return text

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "schema_type")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


def without_nullable(schema: Any) -> Any:
    """Return a schema in which `nullable: true`, a keyword of OpenAPI 3.0, is the JSON Schema for "or null"."""
    if isinstance(schema, list):
        return [without_nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {key: without_nullable(value) for key, value in schema.items()}
    if not isinstance(fields.get("nullable"), bool):
        return fields
    return {"anyOf": [fields, {"type": "null"}]} if fields.pop("nullable") else fields


def single_call_arguments(response: NeMoGymResponse) -> str:
    """Return the arguments of the only tool call of a reply."""
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    if not calls:
        raise ReplyError("empty", "there is no tool call")
    if len(calls) > 1:
        raise ReplyError("parse", f"there are {len(calls)} tool calls instead of one")
    return calls[0].arguments


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(StructuredOutputsServer),
    request_model=StructuredOutputsVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
StructuredOutputsResourcesServer = StructuredOutputsServer
StructuredOutputsResourcesServerConfig = StructuredOutputsConfig


if __name__ == "__main__":
    StructuredOutputsServer.run_webserver()
