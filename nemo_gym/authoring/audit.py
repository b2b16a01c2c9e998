"""Audit a verifier: send right answers, odd forms, wrong answers, cheats and malformed rows; report wrong verdicts.

A server folder's `audit.py` returns the right answer to a row, odd forms of it, close but wrong answers and cheats;
`gym env audit NAME` sends these and the cheats of `nemo_gym.authoring.cheats`. docs/audit.md describes the interface.
"""

import asyncio
import importlib
import inspect
import json
import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel

from nemo_gym.authoring.audit_result import AuditResult, Check, Finding
from nemo_gym.authoring.audit_server import AuditReply, PlayTools, ServerUnderAudit, folder_settings, serve_for_audit
from nemo_gym.authoring.cheats import generic_cheats, injections
from nemo_gym.authoring.model_replies import Reply, Row, shorten_reply
from nemo_gym.authoring.verifier_cases import REWARD_TOLERANCE
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.catalog.rows import parse_row
from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import find_server_class
from nemo_gym.wire.run_seed_verify import BaseVerifyRequest

DEFAULT_ROWS = 10
DEFAULT_SEED = 1
CONCURRENCY = 8
REPEATS, REPEATED_ROWS = 20, 3
"""Number of simultaneous verifications of a row in the check `repeat`, and number of rows it uses."""
INJECTED_ROWS = 2
"""Number of rows that prompt injections are sent for."""
MIN_ODD_FORMS = 20
FAILING_JUDGES: dict[str, str | None] = {
    "a judge that cannot be reached": None,
    "a judge with an empty reply": "",
    "a judge without a verdict": "I would rather not say; both have their merits.",
}

BreakRow = Callable[[Row], Row]
Excuse = str | Callable[[Row], str | None]
"""The reason why a case may fail, or a function that returns it for the rows it applies to."""
Case = tuple[str, int, Reply]
"""Name of the case, number of the row, reply."""


def _no_replies(_row: Row) -> list[Any]:
    return []


@dataclass(frozen=True)
class Expectations:
    """The contents of a folder's `audit.py`; docs/audit.md describes each of them."""

    oracle: Callable[[Row], Reply]
    odd_forms: Callable[[Row], Sequence[Reply]] = _no_replies
    wrong: Callable[[Row], Sequence[Reply]] = _no_replies
    cheats: Callable[[Row], Sequence[tuple[str, Reply]]] = _no_replies
    act: PlayTools | None = None
    judge: Callable[[str], str] | None = None
    as_answer: Callable[[str], Reply] = str
    malformed: Sequence[tuple[str, BreakRow]] = ()
    full_reward: float | Callable[[Row], float] = 1.0
    most_for_a_cheat: float = 0.0
    most_for_wrong: float | None = None
    """Highest reward of a wrong answer; None allows every reward below the full reward."""
    excused: Mapping[str, Excuse] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    rows: int = DEFAULT_ROWS

    def full_reward_of(self, row: Row) -> float:
        return float(self.full_reward(row) if callable(self.full_reward) else self.full_reward)

    def excuse_for(self, name: str, row: Row) -> str | None:
        """Return the reason why a case of this name is not a finding for this row; None if it is a finding."""
        reason = self.excused.get(name)
        return reason(row) if callable(reason) else reason


CONSTANTS = {"malformed", "full_reward", "most_for_a_cheat", "most_for_wrong", "excused", "config", "rows"}
"""Fields of `Expectations` that an audit.py writes in capitals."""


def read_expectations(module: ModuleType) -> Expectations:
    """Read a folder's `audit.py`.

    Raises:
        ConfigError: the module has no `oracle`.
    """
    if not callable(getattr(module, "oracle", None)):
        raise ConfigError("defines no oracle(row)", where=module.__name__, fix="see docs/audit.md")
    names = {key: key.upper() if key in CONSTANTS else key for key in Expectations.__dataclass_fields__}
    return Expectations(**{key: getattr(module, name) for key, name in names.items() if hasattr(module, name)})


def example_rows(folder: Path) -> list[Row]:
    """Return the rows of `data/example.jsonl` without `agent_ref`; none if the file is missing.

    Raises:
        ConfigError: a line is not an object.
    """
    path = folder / "data" / "example.jsonl"
    if not path.exists():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        row = parse_row(line, f"{path}:{number}")
        rows.append({key: value for key, value in row.items() if key != "agent_ref"})
    return rows


def generated_rows(folder: Path, count: int, seed: int) -> list[Row]:
    """Return `count` rows of the folder's `generate.py`; none if the file is missing.

    Raises:
        ConfigError: `generate.py` cannot be imported, or exits because it cannot make `count` different rows.
    """
    if not count or not (folder / "generate.py").exists():
        return []
    try:
        return list(import_folder_module(folder, "generate").rows(count, seed=seed))
    except SystemExit as error:
        raise ConfigError(str(error), where=str(folder / "generate.py"), fix="pass a smaller --rows") from None


def request_model(server: Any) -> type[BaseModel]:
    """Return the class of the request body that a server's `verify` declares, or else `BaseVerifyRequest`."""
    hints = inspect.get_annotations(server.verify, eval_str=True)
    models = [hint for name, hint in hints.items() if name != "return" and isinstance(hint, type)]
    return next((model for model in models if issubclass(model, BaseVerifyRequest)), BaseVerifyRequest)


def row_breakers(model: type[BaseModel], row: Row) -> Iterator[tuple[str, BreakRow]]:
    """Yield (name, function that returns a malformed copy of a row) for each way to break a field of the verifier.

    Changes that may be valid are left out: an optional field may be missing or null, and a required field may be null
    if its type includes None.
    """
    yield "no responses_create_params", lambda row: _without(row, "responses_create_params")
    for name, declared in model.model_fields.items():
        if name in BaseVerifyRequest.model_fields:
            continue
        if declared.is_required():
            yield f"no {name}", lambda row, name=name: _without(row, name)  # type: ignore[misc]
        if declared.is_required() and not _allows_null(declared.annotation):
            yield f"{name} is null", lambda row, name=name: {**row, name: None}  # type: ignore[misc]
        if name in row:
            other = "another type" if isinstance(row[name], Mapping) else {"unexpected": True}
            yield f"{name} is of another type", lambda row, name=name, other=other: {**row, name: other}  # type: ignore[misc]


def _without(row: Mapping[str, Any], name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}


def _allows_null(annotation: Any) -> bool:
    return annotation is Any or type(None) in get_args(annotation)


def import_folder_module(folder: Path, name: str) -> ModuleType:
    """Import a module of the importable folder `resources_servers/<name>`.

    Raises:
        ConfigError: the import fails.
    """
    module = f"resources_servers.{folder.name}.{name}"
    _augment_sys_path()
    try:
        return importlib.import_module(module)
    except Exception as error:  # code of the server folder: report any exception
        raise ConfigError(f"cannot be imported: {type(error).__name__}: {error}", where=module) from error


async def run_audit(folder: Path, *, rows: int | None = None, seed: int = DEFAULT_SEED) -> AuditResult:
    """Audit the server of an importable folder `resources_servers/<name>` with its examples and generated rows.

    Raises:
        ConfigError: the folder has no audit.py or no rows, or its server cannot be built.
    """
    expected = load_expectations(folder)
    count = expected.rows if rows is None else rows
    all_rows = [*example_rows(folder), *generated_rows(folder, count, seed)]
    if not all_rows:
        raise ConfigError("has neither data/example.jsonl nor generate.py", where=str(folder))
    return await audit_rows(folder, all_rows, seed=seed)


def load_expectations(folder: Path) -> Expectations:
    """Import and read `audit.py` of a folder.

    Raises:
        ConfigError: the file is missing or cannot be used.
    """
    if not (folder / "audit.py").exists():
        raise ConfigError("has no audit.py", where=str(folder), fix="write one: see docs/audit.md")
    return read_expectations(import_folder_module(folder, "audit"))


async def audit_rows(
    folder: Path, rows: Sequence[Row], *, checks: Sequence[Check] = get_args(Check), seed: int = DEFAULT_SEED
) -> AuditResult:
    """Run `checks` on these rows with the server of a folder, built from its configuration and `CONFIG`.

    Raises:
        ConfigError: the folder has no usable audit.py, or its server cannot be built.
    """
    expected = load_expectations(folder)
    async with serve_folder(folder, expected) as server:
        result = AuditResult(folder.name, len(rows), seed, most_for_a_cheat=expected.most_for_a_cheat)
        await _Audit(server, expected, rows, result).run(checks)
    return result


def serve_folder(folder: Path, expected: Expectations) -> AbstractAsyncContextManager[ServerUnderAudit]:
    """Start the server of a folder in process; `CONFIG` of its audit.py overrides its configuration."""
    server_class = find_server_class(import_folder_module(folder, "app"), SimpleResourcesServer)
    settings = {**folder_settings(folder), **expected.config}
    return serve_for_audit(server_class, folder.name, settings, expected.act, expected.judge)


class _Audit:
    """One audit in progress: runs the checks and adds counts and findings to `result`."""

    def __init__(
        self, server: ServerUnderAudit, expected: Expectations, rows: Sequence[Row], result: AuditResult
    ) -> None:
        self.server = server
        self.expected = expected
        self.rows = rows
        self.result = result
        self._concurrency = asyncio.Semaphore(CONCURRENCY)

    async def run(self, checks: Sequence[Check]) -> None:
        """Run the given checks one after the other."""
        run_check: dict[Check, Callable[[], Awaitable[None]]] = {
            "oracle": self._check_oracle,
            "odd form": self._check_odd_forms,
            "wrong answer": self._check_wrong_answers,
            "cheat": self._check_cheats,
            "malformed row": self._check_malformed_rows,
            "repeat": self._check_repeats,
            "judge": self._check_failing_judges,
        }
        for check, run in run_check.items():
            if check in checks:
                await run()

    async def _check_oracle(self) -> None:
        """Verify the oracle of every row, one after the other, so that the times can be compared."""
        seconds = []
        for number, row in enumerate(self.rows):
            reply = self.expected.oracle(row)
            answer = await self.server.play(row, reply)
            seconds.append(answer.seconds)
            self._compare("oracle", "the oracle", number, reply, answer)
        self.result.checks["oracle"] = len(seconds)
        self.result.verify_p50 = statistics.median(seconds)

    async def _check_odd_forms(self) -> None:
        """Verify odd forms of the oracle; report a finding if the folder has too few different ones."""
        cases = list(self._numbered_replies("odd form", self.expected.odd_forms))
        different = len({json.dumps(reply, sort_keys=True) for _, _, reply in cases})
        if different < MIN_ODD_FORMS:
            count = f"{different} different ones"
            self._report(Finding("odd form", "right answers in odd forms", None, f"{MIN_ODD_FORMS} or more", count))
        await self._check_cases("odd form", cases)

    async def _check_wrong_answers(self) -> None:
        await self._check_cases("wrong answer", self._numbered_replies("wrong answer", self.expected.wrong))

    async def _check_cheats(self) -> None:
        await self._check_cases("cheat", self._cheat_cases())

    def _numbered_replies(self, label: str, replies: Callable[[Row], Sequence[Reply]]) -> Iterator[Case]:
        """Yield a case for each reply to each row, named by `label` and the position of the reply."""
        for number, row in enumerate(self.rows):
            for position, reply in enumerate(replies(row)):
                yield f"{label} {position}", number, reply

    def _cheat_cases(self) -> Iterator[Case]:
        """Yield the generic cheats, those of the folder and, for servers with a judge, prompt injections."""
        for number, row in enumerate(self.rows):
            for name, reply in [*generic_cheats(row), *self.expected.cheats(row)]:
                yield name, number, reply
            if self.server.judges and number < INJECTED_ROWS:
                wrong = next((reply for reply in self.expected.wrong(row) if isinstance(reply, str)), None)
                for name, text in injections():
                    yield name, number, text
                    yield f"{name} as the answer", number, self.expected.as_answer(text)
                    if wrong is not None:
                        yield f"{name} after a wrong answer", number, f"{wrong}\n\n{text}"

    async def _check_cases(self, check: Check, cases: Iterable[Case]) -> None:
        """Play the cases, `CONCURRENCY` at a time, and compare each reward with the expected one."""
        listed = list(cases)

        async def play_one(number: int, reply: Reply) -> AuditReply:
            async with self._concurrency:
                return await self.server.play(self.rows[number], reply)

        answers = await asyncio.gather(*(play_one(number, reply) for _, number, reply in listed))
        for (name, number, reply), answer in zip(listed, answers, strict=True):
            self._compare(check, name, number, reply, answer)
        self.result.checks[check] = len(listed)

    def _compare(self, check: Check, name: str, number: int, reply: Reply, answer: AuditReply) -> None:
        """Report a finding if the reward is not the one that the check expects."""
        reward, full = answer.reward, self.expected.full_reward_of(self.rows[number])
        if check in ("oracle", "odd form"):
            is_good, rule = reward is not None and abs(reward - full) <= REWARD_TOLERANCE, f"reward {full:g}"
        elif check == "wrong answer" and self.expected.most_for_wrong is None:
            is_good, rule = reward is not None and reward < full - REWARD_TOLERANCE, f"less than {full:g}"
        else:
            max_reward = self.expected.most_for_a_cheat if check == "cheat" else self.expected.most_for_wrong or 0.0
            is_good, rule = reward is not None and reward <= max_reward + REWARD_TOLERANCE, f"at most {max_reward:g}"
        if not is_good:
            self._report(Finding(check, name, number, rule, answer.summary, shorten_reply(reply), reward is not None))

    def _report(self, finding: Finding) -> None:
        """Add a finding, or its excuse if the folder has one for this case."""
        row = self.rows[finding.row] if finding.row is not None else {}
        excuse = self.expected.excuse_for(finding.case, row)
        if excuse is None:
            self.result.findings.append(finding)
        else:
            self.result.excused[finding.case] = excuse

    async def _check_malformed_rows(self) -> None:
        """Check that malformed copies of a row are rejected with 422, by `/seed_session` or by `/verify`.

        Of the rows with the same field names, only the first is used.
        """
        model = request_model(self.server.server)
        first_rows: dict[frozenset[str], int] = {}
        for number, row in enumerate(self.rows):
            first_rows.setdefault(frozenset(row), number)
        count = 0
        for number in first_rows.values():
            row = self.rows[number]
            for name, break_row in [*row_breakers(model, row), *self.expected.malformed]:
                count += 1
                row_copy = json.loads(json.dumps(row))
                answer = await self.server.play(break_row(row_copy), self.expected.oracle(row))
                if answer.status != 422:
                    self._report(Finding("malformed row", name, number, "status 422", answer.summary))
        self.result.checks["malformed row"] = count

    async def _check_repeats(self) -> None:
        """Verify the oracle `REPEATS` times concurrently, each time in a new session, and compare the outcomes."""
        for number, row in enumerate(self.rows[:REPEATED_ROWS]):
            reply = self.expected.oracle(row)
            answers = await asyncio.gather(*(self.server.play(row, reply) for _ in range(REPEATS)))
            outcomes = sorted({answer.summary for answer in answers})
            if len(outcomes) > 1:
                self._report(Finding("repeat", "the oracle, at once", number, "the same", ", ".join(outcomes)))
        self.result.checks["repeat"] = REPEATS * min(REPEATED_ROWS, len(self.rows))

    async def _check_failing_judges(self) -> None:
        """Check that a judge that returns no verdict causes a failure and not a reward; for servers with a judge."""
        if not self.server.judges:
            return
        self.result.checks["judge"] = 0
        if self.server.judge_problem:
            self._report(Finding("judge", "judge() of audit.py", None, "an answer", self.server.judge_problem))
        for name, text in FAILING_JUDGES.items():
            self.server.set_judge(_fail_to_connect if text is None else lambda _prompt, text=text: text)  # type: ignore[misc]
            judged = await self._play_until_judged()
            if judged is None:
                self._report(Finding("judge", name, None, "a call to the judge", "no reply causes one"))
            elif judged[1].failure is None:
                self._report(Finding("judge", name, judged[0], "a failure", judged[1].summary))
            self.result.checks["judge"] += 1

    async def _play_until_judged(self) -> tuple[int, AuditReply] | None:
        """Return the first row with a reply that causes a call to the judge, and the server's answer; None without."""
        for number, row in enumerate(self.rows):
            for reply in [*self.expected.wrong(row), *self.expected.odd_forms(row), self.expected.oracle(row)]:
                previous_calls = self.server.judge_calls
                answer = await self.server.play(row, reply)
                if self.server.judge_calls > previous_calls:
                    return number, answer
        return None


def _fail_to_connect(_prompt: str) -> str:
    raise ConnectionError("connection refused")
