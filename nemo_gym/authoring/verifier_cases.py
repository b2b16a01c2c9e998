"""Run the cases of a verifier fixture: full reward, zero reward, malformed rows, determinism.

A server folder exports `VERIFIER_FIXTURE` in its `app.py`; `gym env test NAME` runs its cases in the Python environment
of the server.
"""

import asyncio
import inspect
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config_types import BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.server_utils import ServerClient

CaseKind = Literal["full_reward", "zero_reward", "malformed", "determinism"]
REQUIRED_KINDS: tuple[CaseKind, ...] = ("full_reward", "zero_reward", "malformed")
CASE_TIMEOUT_SECONDS = 300.0
REWARD_TOLERANCE = 1e-9
DIFFERENT_REWARDS = "different rewards"

Server = TypeVar("Server", bound=SimpleResourcesServer)
Invoke = Callable[[Any, Any], Awaitable[Any]]
"""(server, validated request) -> the verify response."""


@dataclass(frozen=True)
class VerifierFixture:
    """The functions that build and call a verifier, and the file with its cases."""

    server_factory: Callable[[], Any]
    """Returns a new verifier for each verification; one with `aclose()` is closed afterwards."""
    request_model: type[BaseModel]
    cases_path: Path
    invoke: Invoke | None = None
    """Calls the verifier if `verify(body)` is not enough, for example because it needs a seeded session."""
    reseed: Callable[..., Any] | None = None
    """Called before each verification of a determinism case: `reseed(server, request)` or `reseed(seed)`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases_path", Path(self.cases_path))  # folders also write it as text

    def make_server(self) -> Any:
        """Return the verifier; a server class gets a configuration with its defaults."""
        factory: Any = self.server_factory
        is_server_class = inspect.isclass(factory) and issubclass(factory, SimpleResourcesServer)
        return offline_server(factory) if is_server_class else factory()


class VerifierFixtureError(ConfigError, ValueError):
    """The cases of a verifier fixture cannot be run, or a case fails."""


class VerifierCase(BaseModel):
    """One line of the cases file. If `response` is a text, it is converted to a response with that message."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: CaseKind
    request: dict[str, Any]
    expected_reward: float | None = None
    expected_error: str | None = None
    """The name of the exception, such as ValidationError."""

    @model_validator(mode="after")
    def _check_expectation(self) -> "VerifierCase":
        """Require `expected_error` for malformed cases and `expected_reward` for all others."""
        required, excluded = "expected_reward", "expected_error"
        if self.kind == "malformed":
            required, excluded = excluded, required
        if getattr(self, required) is None or getattr(self, excluded) is not None:
            raise ValueError(f"a {self.kind} case has {required} and no {excluded}")
        return self


@dataclass(frozen=True)
class CaseResult:
    """The outcome of one case."""

    name: str
    kind: CaseKind
    expected: float | str | None
    actual: float | str | None
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.problem is None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it and as `verifier_process` sends it; `actual` becomes `found`."""
        return {"found" if key == "actual" else key: value for key, value in asdict(self).items()}


def offline_server(cls: type[Server], **settings: Any) -> Server:
    """Build a server with `settings` in its configuration, without serving it."""
    config_class: Any = cls.model_fields["config"].annotation
    address = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "offline"}
    config: BaseRunServerInstanceConfig = config_class.model_validate({**address, **settings})
    head = BaseServerConfig(host="127.0.0.1", port=1)
    return cls(config=config, server_client=ServerClient(head_server_config=head, global_config_dict={}))


def read_cases(path: Path) -> list[VerifierCase]:
    """Read a cases file.

    Raises:
        ConfigError: the file cannot be read, or lines are not valid cases; the message lists all of them.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise VerifierFixtureError(f"cannot be read: {error.strerror}", where=str(path)) from None
    cases, problems = [], []
    for number, line in enumerate(lines, start=1):
        try:
            cases.append(VerifierCase.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problems.append(f"line {number}: {'.'.join(map(str, first['loc']))} {first['msg']}".replace(":  ", ": "))
    duplicates = [name for name, times in Counter(case.name for case in cases).items() if times > 1]
    problems += [f"two cases are called '{name}'" for name in duplicates]
    if problems:
        raise VerifierFixtureError("; ".join(problems), where=str(path))
    return cases


async def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    seeded: bool = False,
    reward_range: Sequence[float] | None = None,
    best: float | None = None,
    update_expected: bool = False,
) -> list[CaseResult]:
    """Run every case and return the results.

    With `seeded`, there must also be a determinism case. `best` is the reward that every full_reward case must get.
    With `update_expected`, the actual rewards are written into the cases file as the expected ones.

    Raises:
        ConfigError: the file has no usable cases, or lacks a required kind.
    """
    cases = read_cases(fixture.cases_path)
    kinds: list[CaseKind] = [*REQUIRED_KINDS, *(["determinism"] if seeded else [])]  # type: ignore[list-item]
    missing = [kind for kind in kinds if kind not in {case.kind for case in cases}]
    if missing:
        raise VerifierFixtureError(f"has no case of kind {', '.join(missing)}", where=str(fixture.cases_path))
    results = []
    for case in cases:
        actual = await _run_case(fixture, case)
        expected = case.expected_error if case.kind == "malformed" else case.expected_reward
        if update_expected and case.kind != "malformed" and isinstance(actual, float):
            expected = actual
        problem = _case_problem(case, expected, actual, reward_range, best)
        results.append(CaseResult(case.name, case.kind, expected, actual, problem))
    if update_expected:
        _write_expected(fixture.cases_path, cases, results)
    return results


async def _run_case(fixture: VerifierFixture, case: VerifierCase) -> float | str:
    """Return the reward, the name of the exception, or the two different rewards of a determinism case as a text."""
    rewards: list[float] = []
    for _ in range(2 if case.kind == "determinism" else 1):
        try:
            async with asyncio.timeout(CASE_TIMEOUT_SECONDS):
                rewards.append(await _reward_of(fixture, case))
        except Exception as error:  # code of the verifier: any exception is a result
            return type(error).__name__
    if len(set(rewards)) > 1:
        return f"{DIFFERENT_REWARDS}: {rewards[0]:g}, {rewards[1]:g}"
    return rewards[0]


async def _reward_of(fixture: VerifierFixture, case: VerifierCase) -> float:
    """Call a new verifier with a case's request, close it, and return the reward."""
    request = dict(case.request)
    if isinstance(request.get("response"), str):
        request["response"] = text_response(request["response"])
    body = fixture.request_model.model_validate(request)
    server = fixture.make_server()
    try:
        response = await _verify(fixture, server, body, needs_seed=case.kind == "determinism")
    finally:
        if hasattr(server, "aclose"):
            await _await_if_needed(server.aclose())
    return float(response["reward"] if isinstance(response, dict) else response.reward)


async def _verify(fixture: VerifierFixture, server: Any, body: BaseModel, *, needs_seed: bool) -> Any:
    """Return the answer of the verifier; with `needs_seed`, seed its random generators before."""
    if fixture.reseed is not None and needs_seed:
        parameters = inspect.signature(fixture.reseed).parameters.values()
        takes_server = sum(parameter.default is parameter.empty for parameter in parameters) > 1
        await _await_if_needed(fixture.reseed(server, body) if takes_server else fixture.reseed(0))
    return await _await_if_needed((fixture.invoke or _call_verify)(server, body))


async def _await_if_needed(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _call_verify(server: Any, body: BaseModel) -> Any:
    """Call `verify(body)`, or `verify(request, body)` in a new session."""
    if "request" not in inspect.signature(server.verify).parameters:
        return await _await_if_needed(server.verify(body))
    scope = {"type": "http", "method": "POST", "path": "/verify", "headers": [], "session": {SESSION_ID_KEY: "fixture"}}
    return await server.verify(Request(scope), body)


def _case_problem(
    case: VerifierCase,
    expected: float | str | None,
    outcome: float | str,
    reward_range: Sequence[float] | None,
    best: float | None,
) -> str | None:
    """Describe how a case fails: by its outcome or by a reward that the manifest does not allow; None if it passes."""
    if case.kind == "malformed":
        return None if outcome == expected else f"expected {expected}, found {outcome}"
    if isinstance(outcome, str):
        return outcome if outcome.startswith(DIFFERENT_REWARDS) else f"raised {outcome}"
    if not math.isclose(outcome, float(expected or 0.0), abs_tol=REWARD_TOLERANCE):
        return f"expected {expected:g}, found {outcome:g}"
    if reward_range is not None and not reward_range[0] <= outcome <= reward_range[1]:
        return f"{outcome:g} lies outside the range [{reward_range[0]:g}, {reward_range[1]:g}] of the manifest"
    if case.kind == "full_reward" and best is not None and not math.isclose(outcome, best, abs_tol=REWARD_TOLERANCE):
        return f"a full reward is {best:g} here, found {outcome:g}"
    return None


def _write_expected(path: Path, cases: Sequence[VerifierCase], results: Sequence[CaseResult]) -> None:
    """Write the cases file with the expected rewards of the results."""
    lines = []
    for case, result in zip(cases, results, strict=True):
        updates = {"expected_reward": result.expected} if case.kind != "malformed" else {}
        lines.append(json.dumps({**case.model_dump(exclude_none=True), **updates}, ensure_ascii=False))
    with whole_file(path) as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
