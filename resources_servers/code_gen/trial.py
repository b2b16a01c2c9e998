"""Run a program on the tests of its problem: execution in boxes, comparison outside."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_gym.errors import EnvFailed
from resources_servers.code_gen.compare import output_difference, quote, value_difference

BOX_PROGRAM = (Path(__file__).parent / "inside.py").read_text("utf-8")
FIRST_BATCH, GROWTH = 4, 8
"""Most wrong programs fail early: the first box has few tests, the next ones have more."""
LARGEST_BATCH = 8 << 20
"""Characters of input and expected output in one box, unless a single test has more."""
LEAST_OUTPUT = 1 << 20
START_SECONDS = 2.0
"""Time to start a box, in addition to its tests."""
BOX_MIB = 128
"""Memory of a box in addition to that of the program."""

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
"""Kinds of the sandbox as kinds of this module; the others keep their name."""
CAUSED_BY_TEXT = ("timeout", "cpu_time", "memory", "crashed", "output")
"""Kinds of the sandbox that compiling a program can cause; `output` by its warnings."""


class BoxResult(Protocol):
    """The part of `PythonResult` that this module uses."""

    stdout: str
    stderr: str
    kind: str | None
    exit_code: int
    seconds: float
    isolated: bool


class ProgramRunner(Protocol):
    """The part of `PythonRunner` that this module uses."""

    async def run(self, code: str, *, stdin: str, timeout_s: float, memory_mib: int) -> Any: ...


@dataclass(frozen=True)
class ProgramTest:
    """One input and the expected output: text for programs, a value for functions."""

    stdin: str
    expected: Any
    size: int


@dataclass(frozen=True)
class TrialLimits:
    test_seconds: float
    """CPU time of one test; its wall time may be `wall_time_factor` times as long."""
    total_seconds: float
    memory_mib: int
    wall_time_factor: float = 3.0


@dataclass
class Trial:
    """The results of the tests. `error_code` is None if every test was passed."""

    result: list[bool | int]
    """True for a passed test; the last may be an error code. Tests after it did not run."""
    seconds: float = 0.0
    error_code: int | None = None
    error_kind: str | None = None
    error_message: str | None = None
    detail: str | None = None
    isolated: bool = True

    @property
    def is_passed(self) -> bool:
        return self.error_code is None

    def fail(self, code: int, kind: str, message: str, detail: str | None) -> None:
        self.error_code, self.error_kind, self.error_message, self.detail = code, kind, message, detail


async def run_tests(
    runner: ProgramRunner, program: str, tests: Sequence[ProgramTest], fn_name: str | None, limits: TrialLimits
) -> Trial:
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
        await _run_batch(runner, program, batch, fn_name, limits, left, trial)
        if not trial.is_passed:
            break
    return trial


def batches(tests: Sequence[ProgramTest]) -> Iterator[list[ProgramTest]]:
    """Group tests into boxes: few in the first, more in the next, none with too much text."""
    batch: list[ProgramTest] = []
    most, size = FIRST_BATCH, 0
    for test in tests:
        if batch and (len(batch) >= most or size + test.size > LARGEST_BATCH):
            yield batch
            batch, most, size = [], most * GROWTH, 0
        batch.append(test)
        size += test.size
    if batch:
        yield batch


async def _run_batch(
    runner: ProgramRunner,
    program: str,
    batch: list[ProgramTest],
    fn_name: str | None,
    limits: TrialLimits,
    left: float,
    trial: Trial,
) -> None:
    wall = limits.test_seconds * limits.wall_time_factor
    job = {
        "program": program,
        "fn_name": fn_name,
        "tests": [test.stdin for test in batch],
        "seconds": limits.test_seconds,
        "wall_seconds": wall,
        "memory_bytes": limits.memory_mib << 20,
        "output_bytes": max(LEAST_OUTPUT, 2 * max(test.size for test in batch)),
    }
    ran: BoxResult = await runner.run(
        BOX_PROGRAM,
        stdin=json.dumps(job),
        timeout_s=min(left, wall * len(batch)) + START_SECONDS,
        memory_mib=limits.memory_mib + BOX_MIB,
    )
    trial.seconds += ran.seconds
    trial.isolated = trial.isolated and ran.isolated
    if ran.kind == "sandbox" or is_own_failure(ran):
        raise EnvFailed(f"the sandbox failed: {ran.stderr[-500:]}", fix="gym doctor")
    compare_outputs(ran, batch, fn_name, trial)


def is_own_failure(ran: BoxResult) -> bool:
    """Return whether `inside.py` itself failed: before it started the program, or at a forbidden operation.

    The program can end it with a signal, but not make it exit: it cannot write to its descriptors.
    """
    has_started = next(reports(ran.stdout), None) is not None
    is_forbidden = ran.kind == "forbidden" and ran.exit_code == 1
    return is_forbidden or (not has_started and ran.kind not in CAUSED_BY_TEXT)


def compare_outputs(ran: BoxResult, batch: list[ProgramTest], fn_name: str | None, trial: Trial) -> None:
    """Record the results of one box, test by test, until one is not passed."""
    lines = reports(ran.stdout)
    first = next(lines, None)
    if first is not None and first.get("compiled") is False:
        return trial.fail(SYNTAX, "syntax", "Compilation Error", str(first.get("error"))[:500])
    for number, test in enumerate(batch):
        report = next(lines, None)
        if report is None or report.get("test") != number:
            kind = BOX_KINDS.get(ran.kind, ran.kind) if ran.kind else "interfered"
            return _record_failure(trial, kind, ran.stderr)
        if report.get("end") != "done":
            return _record_failure(trial, str(report.get("end")), str(report.get("stderr", "")))
        if fn_name is None:
            difference = output_difference(str(report.get("stdout", "")), test.expected)
        else:
            difference = value_difference(str(report.get("value", "")), test.expected)
        if difference is not None:
            trial.result.append(WRONG)
            return trial.fail(WRONG, "wrong_answer", "Wrong Answer", f"input {quote(test.stdin)}: {difference}")
        trial.result.append(True)
    return None


def _record_failure(trial: Trial, kind: str, stderr: str) -> None:
    code, message = MESSAGES.get(kind, (RUNTIME, "Runtime Error"))
    trial.result.append(code)
    trial.fail(code, kind, message, stderr.strip()[-500:] or None)


def reports(stdout: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a box up to the first that `inside.py` cannot have written. Their content is not trusted."""
    for line in stdout.split("\n"):
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(report, dict):
            return
        yield report
