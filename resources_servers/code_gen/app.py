"""Programming problems: the last fenced block runs on every test in a sandbox and must pass all of them."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse, ReverifyMode
from nemo_gym.grading.extraction import last_assistant_text, last_fenced_block
from nemo_gym.grading.result_types import Extraction, NoAnswer
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, headline_metrics
from nemo_gym.sandbox.base_server import SandboxServer, SandboxServerConfig
from resources_servers.code_gen.trial import NO_CODE, ProgramTest, Trial, TrialLimits, run_tests

LARGEST_TEST = 16 << 20
"""Characters of input and output of one test."""


def extract_program(body: BaseVerifyRequest) -> Extraction[str]:
    """Extract the last fenced block of the last message; its language does not matter."""
    text = last_assistant_text(body.response)
    return text if isinstance(text, NoAnswer) else last_fenced_block(text.value)


class CodeGenConfig(SandboxServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    unit_test_timeout_secs: float = Field(default=10.0, gt=0)
    """CPU time of one test, rounded up to whole seconds; its wall time may be three times as long."""
    total_timeout_secs: float = Field(default=120.0, gt=0)
    """Limit for all tests of one answer, from the start of the first one."""


class UnitTests(BaseModel):
    """The inputs of a program and the expected outputs, test by test."""

    model_config = ConfigDict(extra="allow")

    inputs: list[str] = Field(min_length=1)
    """Text on stdin; for functions the arguments as JSON, one per line."""
    outputs: list[str]
    """Expected text on stdout; for functions the value as JSON."""
    fn_name: str | None = None
    """The function, or the method of `Solution`, to call; None for programs that read stdin."""

    _tests: list[ProgramTest] = PrivateAttr(default_factory=list)

    @field_validator("fn_name", mode="before")
    @classmethod
    def _empty_name_is_none(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _check_tests(self) -> "UnitTests":
        if len(self.inputs) != len(self.outputs):
            raise ValueError(f"there are {len(self.inputs)} `inputs` and {len(self.outputs)} `outputs`")
        if self.fn_name is not None and not self.fn_name.isidentifier():
            raise ValueError(f"`fn_name` {self.fn_name!r} is not the name of a function")
        self._tests = [self._test(n, *pair) for n, pair in enumerate(zip(self.inputs, self.outputs, strict=True))]
        if all(test.expected is None or not str(test.expected).strip() for test in self._tests):
            raise ValueError("every one of `outputs` is empty: a program that does nothing would be right")
        return self

    def _test(self, number: int, stdin: str, expected: str) -> ProgramTest:
        size = len(stdin) + len(expected)
        if size > LARGEST_TEST:
            raise ValueError(f"test {number} has more than {LARGEST_TEST:,} characters")
        if self.fn_name is None:
            return ProgramTest(stdin, expected, size)
        try:
            for line in filter(str.strip, stdin.split("\n")):
                json.loads(line)
            return ProgramTest(stdin, json.loads(expected), size)
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"test {number} calls a function, so its lines must be JSON: {problem}") from None

    @property
    def tests(self) -> list[ProgramTest]:
        return self._tests


class VerifierMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    unit_tests: UnitTests
    difficulty: str | None = None

    @field_validator("unit_tests", mode="before")
    @classmethod
    def _parse_text(cls, value: Any) -> Any:
        """Parse the tests, which some datasets carry as text."""
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
    """The first failure; all fields are None if every test was passed."""

    error_code: int | None = None
    """-1 syntax error, -2 wrong answer, -3 time, -4 runtime error or another limit, -5 no program."""
    error_kind: str | None = None
    error_message: str | None = None
    detail: str | None = None


class CodeGenVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    extracted_model_code: str | None
    """The program; None if the reply has no program."""
    result: list[bool | int]
    """True for each passed test, in order; then the error code of the failed one."""
    metadata: TrialMetadata
    unit_tests_time_taken: float
    difficulty: str | None
    isolated: bool
    """True if the program ran in a sandbox."""


class CodeGenServer(SandboxServer):
    MAX_OUTPUT_BYTES = 64 << 20

    config: CodeGenConfig

    async def verify(self, body: CodeGenVerifyRequest) -> CodeGenVerifyResponse:
        program = extract_program(body)
        trial = await self.run_trial(program, body.verifier_metadata.unit_tests)
        graded = {
            "extracted_model_code": None if isinstance(program, NoAnswer) else program.value,
            "result": trial.result,
            "metadata": TrialMetadata.model_validate(trial, from_attributes=True),
            "unit_tests_time_taken": round(trial.seconds, 6),
            "difficulty": body.difficulty or body.verifier_metadata.difficulty,
            "isolated": trial.isolated,
            "reward": float(trial.is_passed),
        }
        return CodeGenVerifyResponse(**(body.model_dump() | graded))

    async def run_trial(self, program: Extraction[str], unit_tests: UnitTests) -> Trial:
        """Run the program on every test.

        Raises:
            EnvFailed: the sandbox failed.
        """
        if isinstance(program, NoAnswer):
            trial = Trial([], isolated=self._is_isolated)
            trial.fail(NO_CODE, "no_code", "No Program", program.reason)
            return trial
        limits = TrialLimits(
            self.config.unit_test_timeout_secs, self.config.total_timeout_secs, self.config.memory_limit_mib
        )
        return await run_tests(self._runner, program.value, unit_tests.tests, unit_tests.fn_name, limits)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "difficulty")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(CodeGenServer, unit_test_timeout_secs=1.0, sandbox={"local": {}}),
    request_model=CodeGenVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
CodeGenResourcesServer = CodeGenServer
CodeGenResourcesServerConfig = CodeGenConfig


if __name__ == "__main__":
    CodeGenServer.run_webserver()
