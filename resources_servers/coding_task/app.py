"""Fix a small repository: hidden tests run on the changed files in a sandbox and must all pass."""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    tool,
)
from nemo_gym.errors import EnvFailed
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from nemo_gym.sandbox import AsyncSandbox, SandboxErrorKind, SandboxResources, SandboxSpec
from nemo_gym.sandbox.base_server import SandboxServer, SandboxServerConfig
from nemo_gym.sandbox.providers.local.bubblewrap import WORKDIR
from nemo_gym.sandbox.spec import SandboxError
from nemo_gym.sandbox.workspaces import EncodedFile, Workspace, WorkspaceChanges, checked_path, download_snapshot
from nemo_gym.serve.tool_schema import SessionId
from nemo_gym.server_utils import SESSION_ID_KEY

DRIVER = (Path(__file__).parent / "driver.py").read_text(encoding="utf-8")
"""The main program of a hidden test in the box."""
CODE_PLACE = '"CODE"'
"""The text in DRIVER that the code of the test replaces."""
TEST_FILES = ("test_*.py", "*_test.py", "tests", "conftest.py", "sitecustomize.py", "usercustomize.py")
"""Names of files and folders whose changes are ignored: they are not part of a fix."""
LARGEST_OUTPUT = 1 << 20
_LONGEST_VALUE = 300


class HiddenTest(BaseModel):
    """A piece of code that uses the repository and sets `result`, and the value that it must have."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(min_length=1)
    expected: Any = None
    raises: str | None = None
    """The name of the exception class that the code must raise; `expected` is then ignored."""


class CodingTaskMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    hidden_tests: list[HiddenTest] = Field(min_length=1)
    problem: str | None = None


class RecordedChanges(BaseModel):
    """What the agent changed in the workspace, as `harness_agent` reports it."""

    model_config = ConfigDict(extra="ignore")

    files: dict[str, str | EncodedFile] = {}
    deleted: list[str] = []
    diff: str = ""

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: dict[str, Any]) -> dict[str, Any]:
        return {checked_path(name): content for name, content in files.items()}


class CodingTaskSeedRequest(BaseSeedSessionRequest):
    workspace: Workspace


class CodingTaskRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    workspace: Workspace
    verifier_metadata: CodingTaskMetadata

    @field_validator("workspace")
    @classmethod
    def _check_files(cls, workspace: Workspace) -> Workspace:
        if not workspace.files or workspace.archive or workspace.git_bundle:
            raise ValueError("the workspace must consist of `files`")
        return workspace


class CodingTaskVerifyRequest(CodingTaskRunRequest, BaseVerifyRequest):
    workspace_changes: RecordedChanges | None = None


class CodingTaskVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    passed_tests: int
    """Hidden tests that passed before the first one that did not."""
    failed_test: str | None
    """What the first failed test did; None if all passed."""
    failure: str | None
    ignored_changes: list[str]
    """Changed files that are no part of a fix, such as tests."""
    workspace_changes: dict[str, Any]
    isolated: bool


class CodingTaskConfig(SandboxServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    test_timeout_s: float = Field(default=10.0, gt=0)
    """Wall time of one hidden test."""
    command_timeout_s: float = Field(default=60.0, gt=0)
    """Wall time of one command of the tool `bash`."""
    session_seconds: float = Field(default=7200.0, gt=0)
    """Time after which the box of a session is killed."""
    max_output_chars: int = Field(default=20_000, ge=100)
    """Characters of the output of a command that the model sees."""


@dataclass
class ToolSession:
    """The box in which the tool `bash` of one rollout runs."""

    workspace: Workspace
    sandbox: AsyncSandbox | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class CodingTaskServer(SandboxServer):
    MAX_OUTPUT_BYTES = LARGEST_OUTPUT

    config: CodingTaskConfig
    _sessions: dict[str, ToolSession] = PrivateAttr(default_factory=dict)

    async def seed_session(self, request: Request, body: CodingTaskSeedRequest) -> BaseSeedSessionResponse:
        """Remember the workspace of the row; its box is started by the first command."""
        self._sessions[request.session[SESSION_ID_KEY]] = ToolSession(body.workspace)
        return BaseSeedSessionResponse()

    async def close(self, session_id: str) -> None:
        """Kill the box of a session."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.sandbox is not None:
            await session.sandbox.stop()

    @tool
    async def bash(self, command: str, session_id: SessionId) -> str:
        """Run a shell command in the repository and return its output and exit status."""
        session = self._sessions.get(session_id)
        if session is None:
            raise EnvFailed("this session was not seeded, or has ended")
        async with session.turn:
            try:
                if session.sandbox is None:
                    session.sandbox = await self._start_box(session.workspace)
                    if self._sessions.get(session_id) is not session:  # `close` has not seen the box
                        await session.sandbox.stop()
                        raise EnvFailed("this session ended while its box was started")
                result = await session.sandbox.exec(command, timeout_s=self.config.command_timeout_s)
            except SandboxError as error:
                raise EnvFailed(f"the sandbox failed: {error}", fix="gym doctor") from error
        if result.error_type == SandboxErrorKind.SANDBOX:
            raise EnvFailed(f"the sandbox failed: {result.stderr[-500:]}", fix="gym doctor")
        end = f"ended by the sandbox: {result.error_type}" if result.error_type else f"exit status {result.return_code}"
        return f"{_shorten(result.stdout + result.stderr, self.config.max_output_chars)}\n[{end}]"

    async def _start_box(self, workspace: Workspace) -> AsyncSandbox:
        """Start a box with the files of a row."""
        resources = SandboxResources(memory_mib=self.config.memory_limit_mib)
        files = {f"{WORKDIR}/{name}": content for name, content in _contents(workspace.files).items()}
        spec = SandboxSpec(files=dict(files), resources=resources, ttl_s=self.config.session_seconds)
        return await AsyncSandbox(self._runner.provider, spec, owns_provider=False).start()

    async def verify(self, request: Request, body: CodingTaskVerifyRequest) -> CodingTaskVerifyResponse:
        """Run the hidden tests on the changed files."""
        changes = await self._changes(request.session[SESSION_ID_KEY], body)
        before = _contents(body.workspace.files)
        ignored = sorted(name for name in [*changes.files, *changes.deleted] if is_test_file(name))
        fixed = {name: content for name, content in changes.files.items() if not is_test_file(name)}
        deleted = {name for name in changes.deleted if not is_test_file(name)}
        tests = body.verifier_metadata.hidden_tests
        passed, failure = 0, "no file of the program was changed"
        if fixed or deleted:
            files = {name: content for name, content in (before | fixed).items() if name not in deleted}
            passed, failure = await self._run_tests(files, tests)
        is_solved = passed == len(tests)
        graded = {
            "passed_tests": passed,
            "failed_test": None if is_solved else tests[passed].code,
            "failure": None if is_solved else failure,
            "ignored_changes": ignored,
            "workspace_changes": changes.as_dict(),
            "isolated": self._is_isolated,
            "reward": float(is_solved),
        }
        return CodingTaskVerifyResponse(**(body.model_dump() | graded))

    async def _changes(self, session_id: str, body: CodingTaskVerifyRequest) -> WorkspaceChanges:
        """Return the changes that the agent reports, or else those in the box of the session."""
        if body.workspace_changes is not None:
            recorded = body.workspace_changes
            return WorkspaceChanges(_contents(recorded.files), tuple(recorded.deleted), recorded.diff)
        session = self._sessions.get(session_id)
        if session is None or session.sandbox is None:
            return WorkspaceChanges()
        before = _contents(session.workspace.files)
        try:
            after = await download_snapshot(session.sandbox, WORKDIR)
        except SandboxError as error:
            raise EnvFailed(f"the workspace cannot be read: {error}") from error
        return WorkspaceChanges.between(before, after)

    async def _run_tests(self, files: Mapping[str, bytes], tests: list[HiddenTest]) -> tuple[int, str]:
        """Run hidden tests, each in a new box, up to the first failure; return how many passed, and the failure.

        Raises:
            EnvFailed: the sandbox failed.
        """
        for number, test in enumerate(tests):
            code = DRIVER.replace(CODE_PLACE, repr(test.code))
            result = await self._runner.run(
                code, files=files, timeout_s=self.config.test_timeout_s, memory_mib=self.config.memory_limit_mib
            )
            if result.kind == SandboxErrorKind.SANDBOX:
                raise EnvFailed(f"the sandbox failed: {result.stderr[-500:]}", fix="gym doctor")
            if result.kind is not None:
                return number, f"ended by the sandbox: {result.kind}"
            problem = compare_outcome(result.stdout, test)
            if problem is not None:
                return number, problem
        return len(tests), ""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


def is_test_file(name: str) -> bool:
    """Return whether a path is that of a test or of a file that changes how Python runs."""
    return any(fnmatchcase(part, pattern) for part in name.split("/") for pattern in TEST_FILES)


def compare_outcome(stdout: str, test: HiddenTest) -> str | None:
    """Return how the outcome that a test printed differs from the expected one; None if it does not.

    The outcome is the last line, a JSON object with `value` or `raises`. The expected value is not known in the box.
    """
    lines = stdout.splitlines()
    try:
        outcome = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        outcome = None
    if not isinstance(outcome, dict) or outcome.keys() not in ({"value"}, {"raises"}):
        return "the test did not run to its end"
    if "raises" in outcome:
        return None if test.raises and outcome["raises"] == test.raises else f"it raised {_short(outcome['raises'])}"
    if test.raises is not None:
        return f"it did not raise {test.raises}"
    return None if are_equal(outcome["value"], test.expected) else f"the result was {_short(outcome['value'])}"


def are_equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1, 1.0 is."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        try:
            return first == second or math.isclose(first, second, rel_tol=1e-9)
        except OverflowError:  # an integer that no float can be
            return False
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(are_equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
    return type(first) is type(second) and bool(first == second)


def _contents(files: Mapping[str, str | EncodedFile]) -> dict[str, bytes]:
    return {name: each.encode() if isinstance(each, str) else each.content for name, each in files.items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _shorten(text: str, most: int) -> str:
    """Return a text without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(CodingTaskServer, sandbox={"local": {}}),
    request_model=CodingTaskVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    CodingTaskServer.run_webserver()
