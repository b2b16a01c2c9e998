"""Prove the verifier of programs: right ones pass in many forms; wrong, slow and cheating ones earn nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.model_replies import Reply, text_response
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_replies
from nemo_gym.sandbox.providers.local import probe
from resources_servers.code_gen import audit
from resources_servers.code_gen.app import CodeGenServer, CodeGenVerifyRequest
from resources_servers.code_gen.generate import row, rows
from resources_servers.code_gen.problems import BY_NAME

needs_isolation = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")

FOLDER = Path(__file__).parents[1]
PROGRAMS = [json.loads(line) for line in (FOLDER / "tests" / "programs.jsonl").read_text("utf-8").splitlines()]
LIMITS = {"unit_test_timeout_secs": 5.0, "memory_limit_mib": 256}
EVEN_TOTAL = row(BY_NAME["even_total"], 0)

Verdict = dict[str, Any]


def verdicts(cases: list[tuple[dict[str, Any], Reply]], **settings: Any) -> list[Verdict]:
    return verify_replies(CodeGenServer, cases, **{**LIMITS, **settings})


def with_fewer_tests(task: dict[str, Any], count: int) -> dict[str, Any]:
    tests = task["verifier_metadata"]["unit_tests"]
    fewer = {**tests, "inputs": tests["inputs"][:count], "outputs": tests["outputs"][:count]}
    return {**task, "verifier_metadata": {**task["verifier_metadata"], "unit_tests": fewer}}


@needs_isolation
class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = FOLDER
    oracle_rows = 12
    checked_rows = 1


@needs_isolation
def test_the_tests_of_every_problem_tell_wrong_programs_from_right_ones() -> None:
    """Weak tests would pay for a program that is nearly right."""
    tasks = rows(12, seed=1)

    wrong = verdicts([(task, reply) for task in tasks for reply in audit.wrong(task)[:2]])

    assert [verdict["extracted_model_code"] for verdict in wrong if verdict["reward"] != 0.0] == []


@needs_isolation
@pytest.mark.parametrize("kind", ["right", "wrong", "slow", "cheating"])
def test_every_program_gets_the_verdict_it_deserves(kind: str) -> None:
    """Seventy programs as models write them, the dishonest ones included."""
    programs = [program for program in PROGRAMS if program["kind"] == kind]
    cases: list[tuple[dict[str, Any], Reply]] = [
        (with_fewer_tests(row(BY_NAME[one["problem"]], 0), one.get("tests", 3)), f"```python\n{one['program']}```")
        for one in programs
    ]

    results = verdicts(cases, unit_test_timeout_secs=1.0 if kind in ("slow", "cheating") else 5.0)

    by_name = {one["name"]: result for one, result in zip(programs, results, strict=True)}
    assert {name for name, result in by_name.items() if result["reward"] != float(kind == "right")} == set()
    errors = {one["name"]: one["error"] for one in programs if "error" in one}
    assert {name: by_name[name]["metadata"]["error_kind"] for name in errors} == errors
    assert all(result["isolated"] for result in results)


def test_there_are_programs_of_every_sort() -> None:
    """The issue asks for forty; a name twice would hide one."""
    assert len(PROGRAMS) >= 40
    assert len({program["name"] for program in PROGRAMS}) == len(PROGRAMS)


@needs_isolation
def test_a_reply_without_a_program_is_reported_as_such() -> None:
    """`no program` is not `wrong program`: it points to a faulty prompt."""
    replies: list[Reply] = [[], "print(1)", "```python\nprint(1)"]
    silent, bare, cut_off = verdicts([(EVEN_TOTAL, reply) for reply in replies])

    assert silent["metadata"]["error_code"] == bare["metadata"]["error_code"] == cut_off["metadata"]["error_code"] == -5
    assert bare["metadata"]["detail"] == "no fenced block"
    assert cut_off["metadata"]["detail"] == "the last fenced block is not closed"
    assert (silent["extracted_model_code"], silent["result"], silent["reward"]) == (None, [], 0.0)


@needs_isolation
def test_the_verdict_names_the_failed_test_and_the_difference() -> None:
    """A reader of the rollout must see why the program failed."""
    program = "n = input()\nv = input().split()\nprint(sum(int(x) for x in v if int(x) % 2 == 0) + (len(v) > 25))"
    (verdict,) = verdicts([(EVEN_TOTAL, f"```\n{program}\n```")])

    assert verdict["result"][-1] == -2
    assert all(one is True for one in verdict["result"][:-1])
    assert verdict["metadata"]["error_message"] == "Wrong Answer"
    assert "expected" in verdict["metadata"]["detail"]
    assert verdict["difficulty"] == "easy"
    assert verdict["unit_tests_time_taken"] > 0


@needs_isolation
def test_all_tests_together_have_a_time_limit() -> None:
    """A hundred tests that are each just in time would occupy a box for minutes."""
    tests = {"inputs": [str(n) for n in range(40)], "outputs": [str(n) for n in range(40)]}
    task = {"responses_create_params": {"input": "?"}, "verifier_metadata": {"unit_tests": tests}}
    program = "import time\ntime.sleep(0.4)\nprint(input())"

    (verdict,) = verdicts([(task, f"```\n{program}\n```")], total_timeout_secs=1.0)

    assert (verdict["reward"], verdict["metadata"]["error_kind"]) == (0.0, "time")
    assert len(verdict["result"]) < 40


def test_tests_may_be_written_as_text() -> None:
    """Datasets in the wild carry them as JSON in a string."""
    task = row(BY_NAME["merged"], 0)
    tests = json.dumps(task["verifier_metadata"]["unit_tests"])

    body = CodeGenVerifyRequest.model_validate(
        {**task, "verifier_metadata": {"unit_tests": tests}, "response": text_response("1")}
    )

    assert len(body.verifier_metadata.unit_tests.tests) == 10
    assert body.verifier_metadata.unit_tests.fn_name == "merged"


NO_BWRAP = """
from nemo_gym.authoring.verifier_proof import verify_replies
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.sandbox.spec import SandboxUnsupportedError
from resources_servers.code_gen import audit
from resources_servers.code_gen.app import CodeGenServer
from resources_servers.code_gen.generate import rows

try:
    offline_server(CodeGenServer)
except SandboxUnsupportedError as refusal:
    print(refusal)

row = rows(1, seed=0)[0]
for verdict in verify_replies(CodeGenServer, [(row, audit.oracle(row)), (row, "no program")], allow_unsandboxed=True):
    print(verdict["reward"], verdict["isolated"])
"""


def test_without_isolation_the_server_starts_only_if_configured(tmp_path: Path) -> None:
    """Running a model's programs without isolation must be a decision, and every verdict must show it."""
    root = FOLDER.parents[1]

    process = subprocess.run(
        [sys.executable, "-c", NO_BWRAP],
        env={**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert "bubblewrap is not installed" in process.stdout
    assert "allow_unsandboxed: true" in process.stdout
    assert process.stdout.splitlines()[-2:] == ["1.0 False", "0.0 False"]
