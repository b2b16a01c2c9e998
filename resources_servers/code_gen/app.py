"""Programming problems: the last fenced block is run on every test in a sandbox; all of them must be passed."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse, ReverifyMode
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.fences import last_block
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.verdict import Extraction, Unparsed
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics
from nemo_gym.sandbox.server import BoxedConfig, BoxedServer
from resources_servers.code_gen.trial import NO_CODE, Limits, Test, Trial, tried

LARGEST_TEST = 16 << 20
"""Characters of input and output of one test."""


def program_of(body: BaseVerifyRequest) -> Extraction[str]:
    """The last fenced block of the last message, whatever its language is called."""
    said = last_assistant_text(body.response)
    return said if isinstance(said, Unparsed) else last_block(said.value)


class CodeGenConfig(BoxedConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    unit_test_timeout_secs: float = Field(default=10.0, gt=0)
    """CPU time of one test, rounded up to whole seconds; on the clock it may take three times as much."""
    total_timeout_secs: float = Field(default=120.0, gt=0)
    """For all tests of one answer, from the moment the first of them runs."""


class UnitTests(BaseModel):
    """What a program is given and what it has to make of it, test by test."""

    model_config = ConfigDict(extra="allow")

    inputs: list[str] = Field(min_length=1)
    """What is on stdin; for functions the arguments as JSON, one per line."""
    outputs: list[str]
    """What has to be printed; for functions the value as JSON."""
    fn_name: str | None = None
    """The function, or the method of `Solution`, to call; None for programs that read stdin."""

    _tests: list[Test] = PrivateAttr(default_factory=list)

    @field_validator("fn_name", mode="before")
    @classmethod
    def _no_name(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _fits_together(self) -> "UnitTests":
        if len(self.inputs) != len(self.outputs):
            raise ValueError(f"there are {len(self.inputs)} `inputs` and {len(self.outputs)} `outputs`")
        if self.fn_name is not None and not self.fn_name.isidentifier():
            raise ValueError(f"`fn_name` {self.fn_name!r} is not the name of a function")
        self._tests = [self._test(n, *pair) for n, pair in enumerate(zip(self.inputs, self.outputs, strict=True))]
        if all(test.expected is None or not str(test.expected).strip() for test in self._tests):
            raise ValueError("every one of `outputs` is empty: a program that does nothing would be right")
        return self

    def _test(self, number: int, given: str, expected: str) -> Test:
        size = len(given) + len(expected)
        if size > LARGEST_TEST:
            raise ValueError(f"test {number} has more than {LARGEST_TEST:,} characters")
        if self.fn_name is None:
            return Test(given, expected, size)
        try:
            for line in filter(str.strip, given.split("\n")):
                json.loads(line)
            return Test(given, json.loads(expected), size)
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"test {number} calls a function, so its lines must be JSON: {problem}") from None

    @property
    def tests(self) -> list[Test]:
        return self._tests


class VerifierMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    unit_tests: UnitTests
    difficulty: str | None = None

    @field_validator("unit_tests", mode="before")
    @classmethod
    def _written_as_json(cls, value: Any) -> Any:
        """Some datasets carry the tests as text."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as problem:
            raise ValueError(f"`unit_tests` is a text that is not JSON: {problem}") from None


class CodeGenRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    verifier_metadata: VerifierMetadata
    difficulty: str | None = None


class CodeGenVerifyRequest(CodeGenRunRequest, BaseVerifyRequest):
    pass


class TrialMetadata(BaseModel):
    """Why not every test was passed; all None when they were."""

    error_code: int | None = None
    """-1 does not compile, -2 wrong answer, -3 time, -4 runtime error or another limit, -5 no program."""
    error_kind: str | None = None
    error_message: str | None = None
    detail: str | None = None


class CodeGenVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    extracted_model_code: str | None
    """The program that was run; None when there is none."""
    result: list[bool | int]
    """True for each test that was passed, in order; then the code of the one that was not."""
    metadata: TrialMetadata
    unit_tests_time_taken: float
    difficulty: str | None
    isolated: bool
    """Whether programs run in a sandbox here."""


class CodeGenServer(BoxedServer):
    MAX_OUTPUT_BYTES = 64 << 20

    config: CodeGenConfig

    async def verify(self, body: CodeGenVerifyRequest) -> CodeGenVerifyResponse:
        program = program_of(body)
        trial = await self.trial(program, body.verifier_metadata.unit_tests)
        graded = {
            "extracted_model_code": None if isinstance(program, Unparsed) else program.value,
            "result": trial.result,
            "metadata": TrialMetadata.model_validate(trial, from_attributes=True),
            "unit_tests_time_taken": round(trial.seconds, 6),
            "difficulty": body.difficulty or body.verifier_metadata.difficulty,
            "isolated": trial.isolated,
            "reward": float(trial.passed),
        }
        return CodeGenVerifyResponse(**(body.model_dump() | graded))

    async def trial(self, program: Extraction[str], unit_tests: UnitTests) -> Trial:
        """The program on every test.

        Raises:
            EnvFailed: the sandbox failed.
        """
        if isinstance(program, Unparsed):
            trial = Trial([], isolated=self._is_isolated)
            trial.fail(NO_CODE, "no_code", "No Program", program.reason)
            return trial
        limits = Limits(
            self.config.unit_test_timeout_secs, self.config.total_timeout_secs, self.config.memory_limit_mib
        )
        return await tried(self._runner, program.value, unit_tests.tests, unit_tests.fn_name, limits)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "difficulty")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


async def _verified_and_closed(server: CodeGenServer, body: CodeGenVerifyRequest) -> CodeGenVerifyResponse:
    try:
        return await server.verify(body)
    finally:
        await server.aclose()


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(CodeGenServer, unit_test_timeout_secs=1.0, sandbox={"local": {}}),
    request_model=CodeGenVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
    invoke=_verified_and_closed,
)


if __name__ == "__main__":
    CodeGenServer.run_webserver()
