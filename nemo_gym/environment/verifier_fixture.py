"""What a verifier promises, written down as cases and tried: full reward, none, and what it refuses.

A server folder exports `VERIFIER_FIXTURE` in its `app.py`; `gym env test NAME` tries its cases in the environment the
server itself runs in.
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

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.catalog.files import whole_file
from nemo_gym.config_types import BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.server_utils import ServerClient

CaseKind = Literal["full_reward", "zero_reward", "malformed", "determinism"]
REQUIRED: tuple[CaseKind, ...] = ("full_reward", "zero_reward", "malformed")
LONGEST_CASE = 300.0
CLOSE = 1e-9

Server = TypeVar("Server", bound=SimpleResourcesServer)
Invoke = Callable[[Any, Any], Awaitable[Any]]
"""(server, validated request) -> what `verify` answers."""


@dataclass(frozen=True)
class VerifierFixture:
    """How to try a verifier."""

    server_factory: Callable[[], Any]
    request_model: type[BaseModel]
    cases_path: Path
    invoke: Invoke | None = None
    """For verifiers that need more than `verify(body)`, such as a seeded session."""
    reseed: Callable[[int], None] | None = None
    """Called before each run of a determinism case."""


class VerifierCase(BaseModel):
    """One line of the cases file. A text in place of `response` is a response that says it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: CaseKind
    request: dict[str, Any]
    expected_reward: float | None = None
    expected_error: str | None = None
    """The name of the exception, such as ValidationError."""

    @model_validator(mode="after")
    def _expects_one_thing(self) -> "VerifierCase":
        wanted = "expected_error" if self.kind == "malformed" else "expected_reward"
        other = "expected_reward" if self.kind == "malformed" else "expected_error"
        if getattr(self, wanted) is None or getattr(self, other) is not None:
            raise ValueError(f"a {self.kind} case has {wanted} and no {other}")
        return self


@dataclass(frozen=True)
class CaseResult:
    """How one case went."""

    name: str
    kind: CaseKind
    expected: float | str | None
    found: float | str | None
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.problem is None


def offline_server(cls: type[Server], **settings: Any) -> Server:
    """A server that is built but not served, with `settings` in its configuration."""
    config_class: Any = cls.model_fields["config"].annotation
    place = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "offline"}
    config: BaseRunServerInstanceConfig = config_class.model_validate({**place, **settings})
    head = BaseServerConfig(host="127.0.0.1", port=1)
    return cls(config=config, server_client=ServerClient(head_server_config=head, global_config_dict={}))


def said(text: str) -> dict[str, Any]:
    """A response whose only message is `text`; an empty text is a response that says nothing."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "fixture",
        "object": "response",
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def read_cases(path: Path) -> list[VerifierCase]:
    """The cases of a file.

    Raises:
        ConfigError: with every line that is no case.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    cases, problems = [], []
    for number, line in enumerate(lines, start=1):
        try:
            cases.append(VerifierCase.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problems.append(f"line {number}: {'.'.join(map(str, first['loc']))} {first['msg']}".replace(":  ", ": "))
    doubled = [name for name, times in Counter(case.name for case in cases).items() if times > 1]
    problems += [f"two cases are called '{name}'" for name in doubled]
    if problems:
        raise ConfigError("; ".join(problems), where=str(path))
    return cases


async def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    seeded: bool = False,
    reward_range: Sequence[float] | None = None,
    best: float | None = None,
    update_expected: bool = False,
) -> list[CaseResult]:
    """Try every case. `seeded` environments must also show determinism; `best` is what a full reward has to be.

    With `update_expected` the rewards that were found are written into the cases file, as what is expected from now.

    Raises:
        ConfigError: the file has no usable cases, or a kind is missing that every verifier has to show.
    """
    cases = read_cases(fixture.cases_path)
    kinds: list[CaseKind] = [*REQUIRED, *(["determinism"] if seeded else [])]  # type: ignore[list-item]
    missing = [kind for kind in kinds if kind not in {case.kind for case in cases}]
    if missing:
        raise ConfigError(f"has no case of kind {', '.join(missing)}", where=str(fixture.cases_path))
    results = []
    for case in cases:
        found = await _tried(fixture, case)
        expected = case.expected_error if case.kind == "malformed" else case.expected_reward
        if update_expected and case.kind != "malformed" and isinstance(found, float):
            expected = found
        problem = _problem(case, expected, found, reward_range, best)
        results.append(CaseResult(case.name, case.kind, expected, found, problem))
    if update_expected:
        _write(fixture.cases_path, cases, results)
    return results


async def _tried(fixture: VerifierFixture, case: VerifierCase) -> float | str:
    """The reward, or the name of what was raised. A determinism case is run twice; two rewards are an error."""
    rewards: list[float] = []
    for _ in range(2 if case.kind == "determinism" else 1):
        if fixture.reseed is not None and case.kind == "determinism":
            fixture.reseed(0)
        try:
            async with asyncio.timeout(LONGEST_CASE):
                rewards.append(await _reward(fixture, case))
        except Exception as error:  # the verifier's own code: whatever it raises is the finding
            return type(error).__name__
    if len(set(rewards)) > 1:
        return f"different rewards: {rewards[0]:g}, {rewards[1]:g}"
    return rewards[0]


async def _reward(fixture: VerifierFixture, case: VerifierCase) -> float:
    request = dict(case.request)
    if isinstance(request.get("response"), str):
        request["response"] = said(request["response"])
    body = fixture.request_model.model_validate(request)
    server = fixture.server_factory()
    answer = await (fixture.invoke or _verified)(server, body)
    reward = answer["reward"] if isinstance(answer, dict) else answer.reward
    return float(reward)


async def _verified(server: Any, body: BaseModel) -> Any:
    """`verify(body)`, or `verify(request, body)` in a session of its own."""
    if "request" not in inspect.signature(server.verify).parameters:
        return await server.verify(body)
    scope = {"type": "http", "method": "POST", "path": "/verify", "headers": [], "session": {SESSION_ID_KEY: "fixture"}}
    return await server.verify(Request(scope), body)


def _problem(
    case: VerifierCase,
    expected: float | str | None,
    found: float | str,
    reward_range: Sequence[float] | None,
    best: float | None,
) -> str | None:
    if case.kind == "malformed":
        return None if found == expected else f"expected {expected}, found {found}"
    if isinstance(found, str):
        return found if found.startswith("different") else f"raised {found}"
    if not math.isclose(found, float(expected or 0.0), abs_tol=CLOSE):
        return f"expected {expected:g}, found {found:g}"
    if reward_range is not None and not reward_range[0] <= found <= reward_range[1]:
        return f"{found:g} lies outside the range [{reward_range[0]:g}, {reward_range[1]:g}] of the manifest"
    if case.kind == "full_reward" and best is not None and not math.isclose(found, best, abs_tol=CLOSE):
        return f"a full reward is {best:g} here, found {found:g}"
    return None


def _write(path: Path, cases: Sequence[VerifierCase], results: Sequence[CaseResult]) -> None:
    """The cases with the rewards that were found, the file replaced as a whole."""
    lines = []
    for case, result in zip(cases, results, strict=True):
        updated = {"expected_reward": result.expected} if case.kind != "malformed" else {}
        lines.append(json.dumps({**case.model_dump(exclude_none=True), **updated}, ensure_ascii=False))
    with whole_file(path) as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())


def as_plain(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Results as they travel from the process that tried them."""
    return [asdict(result) for result in results]
