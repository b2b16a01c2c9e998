"""Mathematics with a Python that remembers: the last box counts, of the text or else of what a call printed."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.authoring.verifier_fixture import VerifierFixture, offline_server
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
from nemo_gym.grading.math import compare_math
from nemo_gym.grading.verdict import ExtractedAnswer, Extraction, NoAnswer, Verdict, VerdictKind, no_answer_verdict
from nemo_gym.openai_utils import NeMoGymFunctionCallOutput, NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.sandbox.python import PythonResult
from nemo_gym.sandbox.server import SandboxServer, SandboxServerConfig
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
LOST = " Names from earlier calls are gone."


def answer_of(response: NeMoGymResponse, tool: str) -> Extraction[str]:
    """The last box of what the assistant said; if it boxed nothing, the last box that a call of `tool` printed.

    Reasoning is not what was said. A last box that is empty or not closed is no answer.
    """
    said = strip_reasoning("\n".join(assistant_texts(response)))
    text = said.value if isinstance(said, ExtractedAnswer) else ""
    if any(find_boxes(text)):
        return last_boxed(text)
    for printed in reversed(printed_by(response, tool)):
        if any(find_boxes(printed)):
            found = last_boxed(printed)
            return found if isinstance(found, NoAnswer) else ExtractedAnswer(found.value, found.span, "tool_output")
    return NoAnswer("there is no box, neither in the text nor in what a call printed")


def printed_by(response: NeMoGymResponse, tool: str) -> list[str]:
    """What each call of `tool` printed, in order. Outputs that belong to no call of it are not looked at."""
    calls, printed = set(), []
    for item in response.output:
        if isinstance(item, NeMoGymResponseFunctionToolCall) and normalize_tool_name(item.name) == tool:
            calls.add(item.call_id)
        elif isinstance(item, NeMoGymFunctionCallOutput) and item.call_id in calls and isinstance(item.output, str):
            printed.append(_stdout(item.output))
    return printed


def _stdout(output: str) -> str:
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return ""
    stdout = found.get("stdout") if isinstance(found, dict) else None
    return stdout if isinstance(stdout, str) else ""


def graded(found: Extraction[str], expected: str) -> Verdict:
    """Numbers are compared by value, everything else as normalised text; nothing is worked out."""
    if isinstance(found, NoAnswer):
        return no_answer_verdict(found)
    return compare_math(found.value, expected, symbolic=lambda _answer, _gold: False)


def cut(text: str, most: int) -> str:
    """`text`, its middle left out when it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


class MathWithCodeConfig(SandboxServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    tool_name: str = Field(default="execute_python", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """What the rows call the tool."""
    max_execution_time: float = Field(default=10.0, gt=0)
    """Seconds that one call may take."""
    max_output_chars: int = Field(default=10_000, ge=100)
    """Of stdout and of stderr, in what the model is told."""
    session_idle_secs: float = Field(default=900.0, gt=0)
    """A session that nobody used for so long is closed, its names are gone."""
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
    """`boxed`, `boxed_token`, or `tool_output` when the box was printed and not said."""
    outcome: VerdictKind
    reason: str | None
    num_calls: int
    """Calls of the tool in the response."""
    isolated: bool
    """Whether code runs in a sandbox here."""


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
        """A fresh start: a retried rollout inherits nothing."""
        await self._workspaces.close(request.session[SESSION_ID_KEY])
        return BaseSeedSessionResponse()

    async def execute_python(self, request: Request, body: ExecutePythonRequest) -> ExecutePythonResponse:
        """Run Python code. Names are kept between calls; the value of a last expression is printed."""
        seconds = self.config.max_execution_time
        ran, lost = await self._workspaces.execute(request.session[SESSION_ID_KEY], body.code, seconds)
        return self.told(ran, lost=lost)

    def told(self, ran: PythonResult, *, lost: bool) -> ExecutePythonResponse:
        """What the model reads about a call."""
        why = ENDED_BY.get(ran.kind, ran.kind).format(seconds=self.config.max_execution_time) if ran.kind else None
        if why is not None:
            why = f"The code was ended: {why}.{LOST if lost else ''}"
        return ExecutePythonResponse(
            success=ran.ok,
            stdout=cut(ran.stdout, self.config.max_output_chars),
            stderr=cut(ran.stderr, self.config.max_output_chars),
            error_message=why or (None if ran.ok else ran.stderr.strip().rpartition("\n")[2] or "The code failed."),
            isolated=ran.isolated,
        )

    async def verify(self, request: Request, body: MathWithCodeVerifyRequest) -> MathWithCodeVerifyResponse:
        """Grade the answer. The session ends here.

        Raises:
            EnvFailed: the sandbox failed during the session, so the model could not have done better.
        """
        workspace = await self._workspaces.close(request.session[SESSION_ID_KEY])
        if workspace is not None and workspace.failure is not None:
            raise EnvFailed(f"the sandbox failed during the session: {workspace.failure}", fix="gym doctor")
        found = answer_of(body.response, self.config.tool_name)
        verdict = graded(found, body.expected_answer)
        calls = [item for item in body.response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
        result = {
            "extracted_answer": verdict.answer,
            "extraction_rule": found.rule if isinstance(found, ExtractedAnswer) else None,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "num_calls": sum(normalize_tool_name(call.name) == self.config.tool_name for call in calls),
            "isolated": self._is_isolated,
            "reward": verdict.reward,
        }
        return MathWithCodeVerifyResponse(**(body.model_dump() | result))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward", "mean/num_calls") if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}") | highest_k_metrics(agent_metrics, "majority@{k}")


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MathWithCodeServer),
    request_model=MathWithCodeVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MathWithCodeServer.run_webserver()
