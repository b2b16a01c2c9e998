"""The oracle passes in many forms; wrong, slow and cheating programs earn nothing, and the row's faults are its own."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.environment.audit_cheats import generic_cheats
from nemo_gym.environment.audit_replies import Reply, response_of
from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture, offline_server, said
from resources_servers.code_gen import audit
from resources_servers.code_gen.app import VERIFIER_FIXTURE, CodeGenServer, CodeGenVerifyRequest
from resources_servers.code_gen.generate import row, rows
from resources_servers.code_gen.problems import BY_NAME
from resources_servers.code_gen.tests.boxes import needs_box, served

HERE = Path(__file__).parent
PROGRAMS = [json.loads(line) for line in (HERE / "programs.jsonl").read_text("utf-8").splitlines()]
LIMITS = {"unit_test_timeout_secs": 5.0, "memory_limit_mib": 256}
AT_ONCE = 4

Verdict = dict[str, Any]


async def verdicts(cases: list[tuple[dict[str, Any], Reply]], **settings: Any) -> list[Verdict]:
    """What the server says to each reply, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(server: CodeGenServer, given: dict[str, Any], reply: Reply) -> Verdict:
        async with gate:
            body = CodeGenVerifyRequest.model_validate({**given, "response": response_of(reply, given)})
            return (await server.verify(body)).model_dump()

    async with served(CodeGenServer, **{**LIMITS, **settings}) as server:
        return await asyncio.gather(*(one(server, given, reply) for given, reply in cases))


def few_tests(given: dict[str, Any], count: int) -> dict[str, Any]:
    tests = given["verifier_metadata"]["unit_tests"]
    cut = {**tests, "inputs": tests["inputs"][:count], "outputs": tests["outputs"][:count]}
    return {**given, "verifier_metadata": {**given["verifier_metadata"], "unit_tests": cut}}


@needs_box
async def test_every_generated_row_is_solved_by_its_oracle_and_not_by_what_comes_close() -> None:
    """A row whose own answer scores less than full would teach the wrong thing; one with weak tests, too."""
    made = rows(12, seed=1)
    cases = [(given, audit.oracle(given)) for given in made]
    close = [(given, reply) for given in made for reply in audit.wrong(given)[:2]]

    found = await verdicts(cases + close)

    assert [one["metadata"] for one in found[:12] if one["reward"] != 1.0] == []
    assert [one["extracted_model_code"] for one in found[12:] if one["reward"] != 0.0] == []


@needs_box
async def test_a_right_program_passes_in_every_odd_form_and_what_comes_close_in_none() -> None:
    """A right answer judged wrong is a lesson lost, and the other way round."""
    given = row(BY_NAME["even_total"], 0)
    forms, close = audit.odd_forms(given), audit.wrong(given)

    found = await verdicts([(few_tests(given, 2), reply) for reply in [*forms, *close]])

    assert len(forms) >= 20
    assert [one["metadata"] for one in found[: len(forms)] if one["reward"] != 1.0] == []
    assert [one["extracted_model_code"] for one in found[len(forms) :] if one["reward"] != 0.0] == []


@needs_box
@pytest.mark.parametrize("kind", ["right", "wrong", "slow", "cheating"])
async def test_every_program_gets_the_verdict_it_deserves(kind: str) -> None:
    """Seventy programs as models write them, the dishonest ones included."""
    chosen = [program for program in PROGRAMS if program["kind"] == kind]
    cases: list[tuple[dict[str, Any], Reply]] = [
        (few_tests(row(BY_NAME[one["problem"]], 0), one.get("tests", 3)), f"```python\n{one['program']}```")
        for one in chosen
    ]

    found = await verdicts(cases, unit_test_timeout_secs=1.0 if kind in ("slow", "cheating") else 5.0)

    earned = {one["name"]: result["reward"] for one, result in zip(chosen, found, strict=True)}
    named = {one["name"]: (result["metadata"]["error_kind"]) for one, result in zip(chosen, found, strict=True)}
    assert earned == dict.fromkeys(earned, float(kind == "right"))
    assert {name: named[name] for one in chosen if (name := one["name"]) and "error" in one} == {
        one["name"]: one["error"] for one in chosen if "error" in one
    }
    assert all(result["isolated"] for result in found)


def test_there_are_programs_of_every_sort() -> None:
    """The issue asks for forty; a name twice would hide one."""
    assert len(PROGRAMS) >= 40
    assert len({program["name"] for program in PROGRAMS}) == len(PROGRAMS)


@needs_box
async def test_a_cheat_earns_nothing() -> None:
    """Reward without a program is what a policy learns first."""
    cases = [
        (few_tests(given, 3), reply)
        for given in (row(BY_NAME["even_total"], 0), row(BY_NAME["merged"], 0))
        for _, reply in [*generic_cheats(given), *audit.cheats(given)]
    ]

    found = await verdicts(cases)

    assert [one["extracted_model_code"] for one in found if one["reward"] != 0.0] == []


@needs_box
async def test_a_reply_without_a_program_says_so() -> None:
    """`no program` is not `wrong program`: people look for the first when a prompt is at fault."""
    given = row(BY_NAME["even_total"], 0)
    silent, bare, cut_off = await verdicts([(given, []), (given, "print(1)"), (given, "```python\nprint(1)")])

    assert silent["metadata"]["error_code"] == bare["metadata"]["error_code"] == cut_off["metadata"]["error_code"] == -5
    assert bare["metadata"]["detail"] == "there is no fenced block"
    assert cut_off["metadata"]["detail"] == "the last fenced block is not closed"
    assert (silent["extracted_model_code"], silent["result"], silent["reward"]) == (None, [], 0.0)


@needs_box
async def test_the_verdict_says_which_test_failed_and_how() -> None:
    """Whoever looks at a rollout wants to know why."""
    given = row(BY_NAME["even_total"], 0)
    program = "n = input()\nv = input().split()\nprint(sum(int(x) for x in v if int(x) % 2 == 0) + (len(v) > 25))"
    (found,) = await verdicts([(given, f"```\n{program}\n```")])

    assert found["result"][-1] == -2
    assert all(one is True for one in found["result"][:-1])
    assert found["metadata"]["error_message"] == "Wrong Answer"
    assert "expected" in found["metadata"]["detail"]
    assert found["difficulty"] == "easy"
    assert found["unit_tests_time_taken"] > 0


@needs_box
async def test_twenty_verdicts_at_once_are_the_same() -> None:
    """Grading has no memory."""
    given = row(BY_NAME["merged"], 0)

    case = few_tests(given, 3)

    found = await verdicts([(case, audit.oracle(given))] * 20 + [(case, audit.wrong(given)[0])] * 4)

    assert [(one["reward"], one["result"]) for one in found[:20]] == [(1.0, [True, True, True])] * 20
    assert [(one["reward"], one["result"]) for one in found[20:]] == [(0.0, [-2])] * 4


@needs_box
async def test_all_tests_together_have_a_clock() -> None:
    """A hundred tests that are each just in time would hold a box for ever."""
    tests = {"inputs": [str(n) for n in range(40)], "outputs": [str(n) for n in range(40)]}
    given = {"responses_create_params": {"input": "?"}, "verifier_metadata": {"unit_tests": tests}}
    program = "import time\ntime.sleep(0.4)\nprint(input())"

    (found,) = await verdicts([(given, f"```\n{program}\n```")], total_timeout_secs=1.0)

    assert (found["reward"], found["metadata"]["error_kind"]) == (0.0, "time")
    assert len(found["result"]) < 40


@pytest.mark.parametrize(("name", "breaking"), audit.MALFORMED)
def test_a_malformed_row_is_a_clear_422(name: str, breaking: Any) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    server = offline_server(CodeGenServer, allow_unsandboxed=True)
    given = row(BY_NAME["even_total"], 0)

    answer = TestClient(server.setup_webserver()).post("/verify", json={**breaking(given), "response": said("1")})

    assert answer.status_code == 422
    assert answer.json()["detail"][0]["msg"]


def test_tests_may_be_written_as_text() -> None:
    """Datasets in the wild carry them as JSON in a string."""
    given = row(BY_NAME["merged"], 0)
    tests = json.dumps(given["verifier_metadata"]["unit_tests"])

    body = CodeGenVerifyRequest.model_validate(
        {**given, "verifier_metadata": {"unit_tests": tests}, "response": said("1")}
    )

    assert len(body.verifier_metadata.unit_tests.tests) == 10
    assert body.verifier_metadata.unit_tests.fn_name == "merged"


NO_BWRAP = """
import asyncio
from nemo_gym.environment.audit_replies import response_of
from nemo_gym.environment.verifier_fixture import offline_server
from nemo_gym.sandbox.spec import SandboxUnsupportedError
from resources_servers.code_gen import audit
from resources_servers.code_gen.app import CodeGenServer, CodeGenVerifyRequest
from resources_servers.code_gen.generate import rows

try:
    offline_server(CodeGenServer)
except SandboxUnsupportedError as refusal:
    print(refusal)

async def main():
    server = offline_server(CodeGenServer, allow_unsandboxed=True)
    row = rows(1, seed=0)[0]
    for reply in (audit.oracle(row), "no program"):
        body = CodeGenVerifyRequest.model_validate({**row, "response": response_of(reply, row)})
        verdict = await server.verify(body)
        print(verdict.reward, verdict.isolated)
    await server.aclose()

asyncio.run(main())
"""


def test_without_isolation_the_server_refuses_to_start_unless_told_otherwise(tmp_path: Path) -> None:
    """Nobody runs a model's programs on their own machine by accident, and whoever does it on purpose sees it."""
    root = HERE.parents[2]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(root)}

    done = subprocess.run(
        [sys.executable, "-c", NO_BWRAP],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert "bubblewrap is not installed" in done.stdout
    assert "allow_unsandboxed: true" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["1.0 False", "0.0 False"]


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    path = HERE.parent / "data" / "example.jsonl"

    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == rows(5, seed=0)


@needs_box
async def test_the_example_rollouts_get_the_same_verdict_today() -> None:
    """Committed rollouts that no longer hold mislead whoever looks at them."""
    lines = (HERE.parent / "data" / "example_rollouts.jsonl").read_text("utf-8").splitlines()
    rollouts = [json.loads(line) for line in lines]

    async with served(CodeGenServer) as server:
        again = [await server.verify(CodeGenVerifyRequest.model_validate(one)) for one in rollouts]

    assert [(one.reward, one.result) for one in again] == [(one["reward"], one["result"]) for one in rollouts]


@needs_box
async def test_the_verifier_decides_every_case_as_written() -> None:
    """`gym env test code_gen` tries the same cases."""
    results = await exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0)

    assert [result for result in results if not result.is_good] == []
