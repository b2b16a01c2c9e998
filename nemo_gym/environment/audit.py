"""What a verifier is worth: right answers, odd ones, wrong ones, cheats and broken rows, all of them tried.

A server folder says in its `audit.py` what a right answer to a row is, in which odd forms it may come, which answers
are close but wrong and how one might cheat; `gym env audit NAME` tries these, and what nobody should be paid for
anywhere. docs/audit.md has the interface.
"""

import asyncio
import importlib
import json
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_gym.environment.audit_cheats import generic_cheats, injections
from nemo_gym.environment.audit_replies import Reply, shown
from nemo_gym.environment.audit_result import AuditResult, Check, Offence
from nemo_gym.environment.audit_rows import (
    Row,
    breakings,
    example_rows,
    generated_rows,
    request_model,
)
from nemo_gym.environment.audit_server import CLOSE, Act, Answer, Audited, audited_server, folder_settings
from nemo_gym.errors import ConfigError

DEFAULT_ROWS = 10
DEFAULT_SEED = 1
AT_ONCE = 8
REPEATS = 20
REPEATED_ROWS = 3
INJECTED_ROWS = 2
FEWEST_ODD_FORMS = 20
FAILING_JUDGES: dict[str, str | None] = {
    "a judge that cannot be reached": None,
    "a judge that says nothing": "",
    "a judge that does not decide": "I would rather not say; both have their merits.",
}

Excuse = str | Callable[[Row], str | None]


@dataclass(frozen=True)
class Expectations:
    """What a folder's `audit.py` says."""

    oracle: Callable[[Row], Reply]
    odd_forms: Callable[[Row], Sequence[Reply]]
    wrong: Callable[[Row], Sequence[Reply]]
    cheats: Callable[[Row], Sequence[tuple[str, Reply]]]
    act: Act | None
    judge: Callable[[str], str] | None
    as_answer: Callable[[str], Reply]
    malformed: Sequence[tuple[str, Callable[[Row], Row]]]
    full_reward: float | Callable[[Row], float] = 1.0
    most_for_a_cheat: float = 0.0
    most_for_wrong: float | None = None
    """None: anything below the full reward."""
    excused: Mapping[str, Excuse] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    rows: int = DEFAULT_ROWS

    def full(self, row: Row) -> float:
        return float(self.full_reward(row) if callable(self.full_reward) else self.full_reward)

    def excuse(self, name: str, row: Row) -> str | None:
        """Why a case of this name is no offence for this row."""
        found = self.excused.get(name)
        return found(row) if callable(found) else found


def expectations(module: ModuleType) -> Expectations:
    """Read a folder's `audit.py`.

    Raises:
        ConfigError: it has no `oracle`.
    """
    if not callable(getattr(module, "oracle", None)):
        raise ConfigError("defines no oracle(row)", where=module.__name__, fix="see docs/audit.md")

    def none(_row: Row) -> list[Any]:
        return []

    return Expectations(
        oracle=module.oracle,
        odd_forms=getattr(module, "odd_forms", none),
        wrong=getattr(module, "wrong", none),
        cheats=getattr(module, "cheats", none),
        act=getattr(module, "act", None),
        judge=getattr(module, "judge", None),
        as_answer=getattr(module, "as_answer", str),
        malformed=getattr(module, "MALFORMED", ()),
        full_reward=getattr(module, "FULL_REWARD", 1.0),
        most_for_a_cheat=getattr(module, "MOST_FOR_A_CHEAT", 0.0),
        most_for_wrong=getattr(module, "MOST_FOR_WRONG", None),
        excused=getattr(module, "EXCUSED", {}),
        config=getattr(module, "CONFIG", {}),
        rows=getattr(module, "ROWS", DEFAULT_ROWS),
    )


async def audited(folder: Path, *, rows: int | None = None, seed: int = DEFAULT_SEED) -> AuditResult:
    """Audit the server in a folder `resources_servers/<name>` that can be imported from.

    Raises:
        ConfigError: the folder has no audit.py or no rows, or its server cannot be built.
    """
    name = folder.name
    package = f"resources_servers.{name}"
    if not (folder / "audit.py").exists():
        raise ConfigError("has no audit.py", where=str(folder), fix="write one: docs/audit.md says how")
    expected = expectations(_imported(f"{package}.audit"))
    asked = expected.rows if rows is None else rows
    tasks = [*example_rows(folder), *generated_rows(folder, f"{package}.generate", asked, seed)]
    if not tasks:
        raise ConfigError("has neither data/example.jsonl nor generate.py", where=str(folder))
    settings = {**folder_settings(folder), **expected.config}
    async with audited_server(_imported(f"{package}.app"), name, settings, expected.act) as server:
        if expected.judge is not None:
            server.let_judges(expected.judge)
        audit = _Audit(server, expected, tasks)
        await audit.run()
    found = (audit.checks, audit.offences, audit.excused, audit.p50, expected.most_for_a_cheat)
    return AuditResult(name, len(tasks), seed, *found)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # somebody else's module: whatever it raises is the answer
        raise ConfigError(f"cannot be imported: {type(error).__name__}: {error}", where=name) from error


class _Audit:
    """One run through everything; what it finds is kept as it goes."""

    def __init__(self, server: Audited, expected: Expectations, rows: Sequence[Row]) -> None:
        self.server = server
        self.expected = expected
        self.rows = rows
        self.checks: dict[Check, int] = {}
        self.offences: list[Offence] = []
        self.excused: dict[str, str] = {}
        self.p50 = 0.0
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        await self._oracle()
        await self._odd_forms()
        await self._all("wrong answer", self._wrong_cases())
        await self._all("cheat", self._cheat_cases())
        await self._malformed()
        await self._repeats()
        if self.server.judges:
            await self._judges()

    async def _oracle(self) -> None:
        """One after the other, so that their times mean something."""
        seconds = []
        for number, row in enumerate(self.rows):
            reply = self.expected.oracle(row)
            answer = await self.server.play(row, reply)
            seconds.append(answer.seconds)
            self._judge_case("oracle", "the oracle", number, reply, answer)
        self.checks["oracle"] = len(seconds)
        self.p50 = statistics.median(seconds)

    async def _odd_forms(self) -> None:
        cases = [
            (f"odd form {place}", number, reply)
            for number, row in enumerate(self.rows)
            for place, reply in enumerate(self.expected.odd_forms(row))
        ]
        different = len({json.dumps(reply, sort_keys=True) for _, _, reply in cases})
        if different < FEWEST_ODD_FORMS:
            found = f"{different} different ones"
            self._offend(Offence("odd form", "right answers in odd forms", None, f"{FEWEST_ODD_FORMS} or more", found))
        await self._all("odd form", cases)

    def _wrong_cases(self) -> Iterator[tuple[str, int, Reply]]:
        for number, row in enumerate(self.rows):
            for place, reply in enumerate(self.expected.wrong(row)):
                yield f"wrong answer {place}", number, reply

    def _cheat_cases(self) -> Iterator[tuple[str, int, Reply]]:
        for number, row in enumerate(self.rows):
            for name, reply in [*generic_cheats(row), *self.expected.cheats(row)]:
                yield name, number, reply
            if self.server.judges and number < INJECTED_ROWS:
                wrong = [reply for reply in self.expected.wrong(row) if isinstance(reply, str)][:1]
                for name, text in injections():
                    yield name, number, text
                    yield f"{name} as the answer", number, self.expected.as_answer(text)
                    yield from ((f"{name} after a wrong answer", number, f"{one}\n\n{text}") for one in wrong)

    async def _all(self, check: Check, cases: Any) -> None:
        """Play cases (name, row, reply), several at once, and judge each."""
        listed = list(cases)

        async def one(number: int, reply: Reply) -> Answer:
            async with self._gate:
                return await self.server.play(self.rows[number], reply)

        answers = await _gathered([one(number, reply) for _, number, reply in listed])
        for (name, number, reply), answer in zip(listed, answers, strict=True):
            self._judge_case(check, name, number, reply, answer)
        self.checks[check] = len(listed)

    def _judge_case(self, check: Check, name: str, number: int, reply: Reply, answer: Answer) -> None:
        row, reward = self.rows[number], answer.reward
        full = self.expected.full(row)
        if check in ("oracle", "odd form"):
            good, wanted = reward is not None and abs(reward - full) <= CLOSE, f"reward {full:g}"
        elif check == "wrong answer" and self.expected.most_for_wrong is None:
            good, wanted = reward is not None and reward < full - CLOSE, f"less than {full:g}"
        else:
            most = self.expected.most_for_a_cheat if check == "cheat" else self.expected.most_for_wrong or 0.0
            good, wanted = reward is not None and reward <= most + CLOSE, f"at most {most:g}"
        if not good:
            self._offend(Offence(check, name, number, wanted, answer.found, shown(reply), reward is not None))

    def _offend(self, offence: Offence) -> None:
        row = self.rows[offence.row] if offence.row is not None else {}
        excuse = self.expected.excuse(offence.case, row)
        if excuse is None:
            self.offences.append(offence)
        else:
            self.excused[offence.case] = excuse

    async def _malformed(self) -> None:
        """Every way to break the first row of each shape; a row refused when its session is seeded is refused."""
        model = request_model(self.server.server)
        shapes = {tuple(sorted(row)): number for number, row in reversed(list(enumerate(self.rows)))}
        count = 0
        for number in sorted(shapes.values()):
            row = self.rows[number]
            for name, broken in [*breakings(model, row), *self.expected.malformed]:
                count += 1
                answer = await self.server.play(broken(json.loads(json.dumps(row))), self.expected.oracle(row))
                if answer.status != 422:
                    self._offend(Offence("malformed row", name, number, "status 422", answer.found))
        self.checks["malformed row"] = count

    async def _repeats(self) -> None:
        """The oracle many times at once, each time in a session of its own."""
        for number, row in enumerate(self.rows[:REPEATED_ROWS]):
            reply = self.expected.oracle(row)
            answers = await _gathered([self.server.play(row, reply) for _ in range(REPEATS)])
            found = sorted({answer.found for answer in answers})
            if len(found) > 1:
                self._offend(Offence("repeat", "the oracle, at once", number, "the same", ", ".join(found)))
        self.checks["repeat"] = REPEATS * min(REPEATED_ROWS, len(self.rows))

    async def _judges(self) -> None:
        """A judge that gives no verdict must leave no reward; tried with a reply that the judge is asked about."""
        self.checks["judge"] = 0
        if self.server.judge_problem:
            self._offend(Offence("judge", "judge() of audit.py", None, "an answer", self.server.judge_problem))
        for name, text in FAILING_JUDGES.items():
            self.server.let_judges(_unreachable if text is None else lambda _prompt, text=text: text)  # type: ignore[misc]
            answer = await self._asked_about()
            if answer is None:
                self._offend(Offence("judge", name, None, "a judge that is asked", "no reply reaches it"))
            elif answer.failure is None:
                self._offend(Offence("judge", name, 0, "a failure", answer.found))
            self.checks["judge"] += 1

    async def _asked_about(self) -> Answer | None:
        for row in self.rows:
            for reply in [*self.expected.wrong(row), *self.expected.odd_forms(row), self.expected.oracle(row)]:
                before = self.server.asked
                answer = await self.server.play(row, reply)
                if self.server.asked > before:
                    return answer
        return None


def _unreachable(_prompt: str) -> str:
    raise ConnectionError("nobody is there")


async def _gathered(calls: Sequence[Awaitable[Answer]]) -> list[Answer]:
    async def one(call: Awaitable[Answer]) -> Answer:
        return await call

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in calls]
    return [task.result() for task in tasks]
