"""Mathematics with a Python tool that keeps its names: the last box in the text or in printed output counts."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    normalize_tool_name,
)
from nemo_gym.errors import EnvFailed
from nemo_gym.grading.extraction import assistant_texts, find_boxes, last_boxed, strip_reasoning
from nemo_gym.grading.math import compare_math, extract_math_answer
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer, Verdict, VerdictKind, no_answer_verdict
from nemo_gym.openai_utils import NeMoGymFunctionCallOutput, NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from nemo_gym.sandbox.base_server import SandboxServer, SandboxServerConfig
from nemo_gym.sandbox.python import PythonResult
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.math_with_code.workspaces import Workspaces

ENDED_BY = {
    "timeout": "it took longer than {seconds:g} s",
    "cpu_time": "it took more CPU time than allowed",
    "memory": "it ran out of memory",
    "output": "it printed too much",
    "processes": "it started too many processes",
    "disk": "it wrote too much",
    "forbidden": "it did something that is not allowed here",
    "crashed": "the interpreter crashed",
}
_BETWEEN_MESSAGES = "\n---\n"
"""Joins messages so that a box of one is not a part of the answer in the next."""
NAMES_LOST = " Names from earlier calls are gone."


def extract_answer(response: NeMoGymResponse, tool: str) -> Extraction[str]:
    """Read the last box in the assistant's text; without any, the last box that a call of `tool` printed.

    Reasoning is ignored. A last box that is empty, negated or not closed is no answer; boxes that "or" joins are one
    answer with several values.
    """
    reply = strip_reasoning(_BETWEEN_MESSAGES.join(assistant_texts(response)))
    text = reply.value if isinstance(reply, ExtractedAnswer) else ""
    if any(find_boxes(text)):
        return extract_math_answer(text)
    for output in reversed(printed_outputs(response, tool)):
        if any(find_boxes(output)):
            answer = last_boxed(output)
            return answer if isinstance(answer, NoAnswer) else ExtractedAnswer(answer.value, answer.span, "tool_output")
    return NoAnswer("there is no box, neither in the text nor in what a call printed")


def printed_outputs(response: NeMoGymResponse, tool: str) -> list[str]:
    """Return the output that each call of `tool` printed, in order; outputs without such a call are ignored."""
    call_ids, outputs = set(), []
    for item in response.output:
        if isinstance(item, NeMoGymResponseFunctionToolCall) and normalize_tool_name(item.name) == tool:
            call_ids.add(item.call_id)
        elif isinstance(item, NeMoGymFunctionCallOutput) and item.call_id in call_ids and isinstance(item.output, str):
            outputs.append(_stdout(item.output))
    return outputs


def _stdout(output: str) -> str:
    try:
        fields = json.loads(output)
    except (ValueError, RecursionError):
        return ""
    stdout = fields.get("stdout") if isinstance(fields, dict) else None
    return stdout if isinstance(stdout, str) else ""


def grade_answer(answer: Extraction[str], expected: str) -> Verdict:
    """Compare numbers by value and everything else as normalised text; expressions are not evaluated."""
    if isinstance(answer, NoAnswer):
        return no_answer_verdict(answer)
    return compare_math(answer.value, expected, symbolic=lambda _answer, _gold: False)


def shorten_middle(text: str, most: int) -> str:
    """Return `text` without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


class MathWithCodeConfig(SandboxServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    tool_name: str = Field(default="execute_python", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the tool in the rows."""
    max_execution_time: float = Field(default=10.0, gt=0)
    """Largest duration of one call in seconds."""
    max_output_chars: int = Field(default=10_000, ge=100)
    """Characters of stdout and of stderr that the model sees."""
    session_idle_secs: float = Field(default=900.0, gt=0)
    """Seconds without a call after which a session is closed and its names are lost."""
    max_sessions: int = Field(default=512, ge=1)


class ExecutePythonRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str


class ExecutePythonResponse(BaseModel):
    success: bool
    stdout: str
    stderr: str
    error_message: str | None = None
    isolated: bool = True


class MathWithCodeRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    expected_answer: str = Field(min_length=1, validation_alias=AliasChoices("expected_answer", "expected_result"))


class MathWithCodeVerifyRequest(MathWithCodeRunRequest, BaseVerifyRequest):
    pass


class MathWithCodeVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answer: str
    extracted_answer: str | None
    extraction_rule: str | None
    """`boxed`, `boxed_token`, or `tool_output` if the box was printed by a call."""
    outcome: VerdictKind
    reason: str | None
    num_calls: int
    """Number of calls of the tool in the response."""
    isolated: bool
    """True if code runs in a sandbox."""


class MathWithCodeServer(SandboxServer):
    config: MathWithCodeConfig
    _workspaces: Workspaces = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._workspaces = Workspaces(
            lambda: self._runner.session(memory_mib=self.config.memory_limit_mib),
            idle_seconds=self.config.session_idle_secs,
            most=self.config.max_sessions,
        )

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post(f"/{self.config.tool_name}")(self.execute_python)
        return app

    async def aclose(self) -> None:
        await self._workspaces.aclose()
        await super().aclose()

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:  # noqa: ARG002
        """Close the old session, so that a retried rollout inherits nothing."""
        await self._workspaces.close(request.session[SESSION_ID_KEY])
        return BaseSeedSessionResponse()

    async def execute_python(self, request: Request, body: ExecutePythonRequest) -> ExecutePythonResponse:
        """Run Python code. Names are kept between calls; the value of a last expression is printed."""
        seconds = self.config.max_execution_time
        result, names_lost = await self._workspaces.execute(request.session[SESSION_ID_KEY], body.code, seconds)
        return self.describe_result(result, names_lost=names_lost)

    def describe_result(self, result: PythonResult, *, names_lost: bool) -> ExecutePythonResponse:
        """Describe the result of a call for the model."""
        error = None
        if result.kind:
            reason = ENDED_BY.get(result.kind, result.kind).format(seconds=self.config.max_execution_time)
            error = f"The code was ended: {reason}.{NAMES_LOST if names_lost else ''}"
        elif not result.ok:
            error = result.stderr.strip().rpartition("\n")[2] or "The code failed."
        return ExecutePythonResponse(
            success=result.ok,
            stdout=shorten_middle(result.stdout, self.config.max_output_chars),
            stderr=shorten_middle(result.stderr, self.config.max_output_chars),
            error_message=error,
            isolated=result.isolated,
        )

    async def verify(self, request: Request, body: MathWithCodeVerifyRequest) -> MathWithCodeVerifyResponse:
        """Grade the answer and close the session.

        Raises:
            EnvFailed: the sandbox failed during the session, which is not the fault of the model.
        """
        workspace = await self._workspaces.close(request.session[SESSION_ID_KEY])
        if workspace is not None and workspace.failure is not None:
            raise EnvFailed(f"the sandbox failed during the session: {workspace.failure}", fix="gym doctor")
        answer = extract_answer(body.response, self.config.tool_name)
        verdict = grade_answer(answer, body.expected_answer)
        calls = [item for item in body.response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
        fields = {
            "extracted_answer": verdict.answer,
            "extraction_rule": answer.rule if isinstance(answer, ExtractedAnswer) else None,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "num_calls": sum(normalize_tool_name(call.name) == self.config.tool_name for call in calls),
            "isolated": self._is_isolated,
            "reward": verdict.reward,
        }
        return MathWithCodeVerifyResponse(**(body.model_dump() | fields))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics, "mean/num_calls", patterns=("pass@{k}", "majority@{k}"))


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MathWithCodeServer),
    request_model=MathWithCodeVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
MathWithCodeResourcesServer = MathWithCodeServer
MathWithCodeResourcesServerConfig = MathWithCodeConfig


if __name__ == "__main__":
    MathWithCodeServer.run_webserver()
