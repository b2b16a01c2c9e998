"""A program tried on the tests of its problem: run in boxes, judged here."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_gym.errors import EnvFailed
from resources_servers.code_gen.compare import output_differs, shown, value_differs

INSIDE = (Path(__file__).parent / "inside.py").read_text("utf-8")
FIRST_BATCH, GROWTH = 4, 8
"""Most wrong programs fail early: the first box has few tests, the next ones more."""
LARGEST_BATCH = 8 << 20
"""Characters of input and expected output in one box, unless a single test has more."""
LEAST_OUTPUT = 1 << 20
START_SECONDS = 2.0
"""For a box, beside its tests."""
BESIDE_MIB = 128
"""Memory of a box beside that of the program."""

SYNTAX, WRONG, TIME, RUNTIME, NO_CODE = -1, -2, -3, -4, -5
"""Error codes; the first four mean what they mean in LiveCodeBench."""
MESSAGES = {
    "time": (TIME, "Time Limit Exceeded"),
    "memory": (RUNTIME, "Memory Limit Exceeded"),
    "output": (RUNTIME, "Output Limit Exceeded"),
    "processes": (RUNTIME, "Process Limit Exceeded"),
    "forbidden": (RUNTIME, "Forbidden Operation"),
    "error": (RUNTIME, "Runtime Error"),
    "crash": (RUNTIME, "Runtime Error"),
    "interfered": (RUNTIME, "Runtime Error"),
}
BOX_KINDS = {"timeout": "time", "cpu_time": "time", "crashed": "crash"}
"""What a box says, in our words; what is not here is the same word."""


class Ran(Protocol):
    """What a box gives back, as `PythonResult` does."""

    stdout: str
    stderr: str
    kind: str | None
    seconds: float
    isolated: bool


class Runner(Protocol):
    """What is needed of a `PythonRunner`."""

    async def run(self, code: str, *, stdin: str, timeout_s: float, memory_mib: int) -> Any: ...


@dataclass(frozen=True)
class Test:
    """One input and what a right program makes of it: text for programs, a value for functions."""

    given: str
    expected: Any
    size: int


@dataclass(frozen=True)
class Limits:
    test_seconds: float
    """CPU time of one test; on the clock it may take `patience` times as much."""
    total_seconds: float
    memory_mib: int
    patience: float = 3.0


@dataclass
class Trial:
    """How it went. `error_code` is None when every test was passed."""

    result: list[bool | int]
    """True for a passed test; the last may be an error code. Tests behind it were not run."""
    seconds: float = 0.0
    error_code: int | None = None
    error_kind: str | None = None
    error_message: str | None = None
    detail: str | None = None
    isolated: bool = True

    @property
    def passed(self) -> bool:
        return self.error_code is None

    def fail(self, code: int, kind: str, message: str, detail: str | None) -> None:
        self.error_code, self.error_kind, self.error_message, self.detail = code, kind, message, detail


async def tried(runner: Runner, program: str, tests: Sequence[Test], fn_name: str | None, limits: Limits) -> Trial:
    """Run `program` on every test until one fails.

    Raises:
        EnvFailed: the sandbox failed, which says nothing about the program.
    """
    trial = Trial([])
    for batch in batches(tests):
        left = limits.total_seconds - trial.seconds
        if left <= 0:
            trial.fail(TIME, "time", "Time Limit Exceeded", f"{limits.total_seconds:g} s for all tests together")
            break
        await _try_batch(runner, program, batch, fn_name, limits, left, trial)
        if not trial.passed:
            break
    return trial


def batches(tests: Sequence[Test]) -> Iterator[list[Test]]:
    """Tests in boxes: few in the first, more in the next, none with too much text."""
    batch: list[Test] = []
    most, size = FIRST_BATCH, 0
    for test in tests:
        if batch and (len(batch) >= most or size + test.size > LARGEST_BATCH):
            yield batch
            batch, most, size = [], most * GROWTH, 0
        batch.append(test)
        size += test.size
    if batch:
        yield batch


async def _try_batch(
    runner: Runner,
    program: str,
    batch: list[Test],
    fn_name: str | None,
    limits: Limits,
    left: float,
    trial: Trial,
) -> None:
    wall = limits.test_seconds * limits.patience
    job = {
        "program": program,
        "fn_name": fn_name,
        "tests": [test.given for test in batch],
        "seconds": limits.test_seconds,
        "wall_seconds": wall,
        "memory_bytes": limits.memory_mib << 20,
        "output_bytes": max(LEAST_OUTPUT, 2 * max(test.size for test in batch)),
    }
    ran: Ran = await runner.run(
        INSIDE,
        stdin=json.dumps(job),
        timeout_s=min(left, wall * len(batch)) + START_SECONDS,
        memory_mib=limits.memory_mib + BESIDE_MIB,
    )
    trial.seconds += ran.seconds
    trial.isolated = trial.isolated and ran.isolated
    if ran.kind == "sandbox":
        raise EnvFailed(f"the sandbox failed: {ran.stderr[-500:]}", fix="gym doctor")
    judge(ran, batch, fn_name, trial)


def judge(ran: Ran, batch: list[Test], fn_name: str | None, trial: Trial) -> None:
    """Write down what came out of one box, test by test, until one is not passed."""
    said = reports(ran.stdout)
    first = next(said, None)
    if first is not None and first.get("compiled") is False:
        return trial.fail(SYNTAX, "syntax", "Compilation Error", str(first.get("error"))[:500])
    for number, test in enumerate(batch):
        report = next(said, None)
        if report is None or report.get("test") != number:
            kind = BOX_KINDS.get(ran.kind, ran.kind) if ran.kind else "interfered"
            return _failed(trial, kind, ran.stderr)
        if report.get("end") != "done":
            return _failed(trial, str(report.get("end")), str(report.get("stderr", "")))
        if fn_name is None:
            why = output_differs(str(report.get("stdout", "")), test.expected)
        else:
            why = value_differs(str(report.get("value", "")), test.expected)
        if why is not None:
            trial.result.append(WRONG)
            return trial.fail(WRONG, "wrong_answer", "Wrong Answer", f"input {shown(test.given)}: {why}")
        trial.result.append(True)
    return None


def _failed(trial: Trial, kind: str, stderr: str) -> None:
    code, message = MESSAGES.get(kind, (RUNTIME, "Runtime Error"))
    trial.result.append(code)
    trial.fail(code, kind, message, stderr.strip()[-500:] or None)


def reports(stdout: str) -> Iterator[dict[str, Any]]:
    """The lines that came out of a box, as far as they are what `inside.py` writes. Nothing in them is trusted."""
    for line in stdout.split("\n"):
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(report, dict):
            return
        yield report
