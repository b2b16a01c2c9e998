"""Prove the verifier of coding tasks: fixes pass in many forms, patches that only please the visible test do not."""

from pathlib import Path
from typing import Any

import pytest

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_replies
from nemo_gym.errors import EnvFailed
from nemo_gym.sandbox import AsyncSandbox
from nemo_gym.sandbox.providers.local import probe
from nemo_gym.sandbox.workspaces import Workspace
from resources_servers.coding_task import audit
from resources_servers.coding_task.app import (
    CodingTaskServer,
    HiddenTest,
    ToolSession,
    are_equal,
    compare_outcome,
    is_test_file,
)
from resources_servers.coding_task.generate import expected_outcomes, row, rows
from resources_servers.coding_task.problems import MERGE, PROBLEMS, Problem
from resources_servers.coding_task.scripted_solver import next_turn, shell_call, shell_tool

needs_isolation = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")

SETTINGS = {"memory_limit_mib": 256, "test_timeout_s": 20.0}


@needs_isolation
class TestProof(VerifierProof):
    """Oracle, odd forms, wrong patches, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    oracle_rows = 12
    checked_rows = 2


@needs_isolation
def test_the_hidden_tests_of_every_problem_tell_wrong_patches_from_fixes() -> None:
    """Weak hidden tests would pay for a patch that only pleases the visible test."""
    tasks = [row(problem, 3) for problem in PROBLEMS]
    cases = [(task, reply) for task in tasks for reply in audit.wrong(task)[: len(MERGE.wrong)]]

    verdicts = verify_replies(CodingTaskServer, cases, **SETTINGS)

    assert [verdict["workspace_changes"]["diff"] for verdict in verdicts if verdict["reward"] != 0.0] == []


@needs_isolation
def test_changes_that_a_harness_reports_decide_without_a_session() -> None:
    """The stored rollout of a harness must be verifiable again, without its workspace."""
    task = row(MERGE, 0)
    fixed = {"files": {MERGE.module: MERGE.with_replacement(MERGE.fix), "test_merge.py": "broken"}, "deleted": []}

    verdict, without = verify_replies(
        CodingTaskServer, [({**task, "workspace_changes": fixed}, "Done."), (task, "Done.")], **SETTINGS
    )

    assert (verdict["reward"], verdict["ignored_changes"]) == (1.0, ["test_merge.py"])
    assert (without["reward"], without["failure"]) == (0.0, "no file of the program was changed")


@needs_isolation
async def test_a_box_that_starts_after_the_end_of_its_session_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout may be cancelled while its first command starts the box, which would then run for two hours."""
    start_box = CodingTaskServer._start_box

    async def close_meanwhile(server: CodingTaskServer, workspace: Workspace) -> AsyncSandbox:
        await server.close("s")
        return await start_box(server, workspace)

    monkeypatch.setattr(CodingTaskServer, "_start_box", close_meanwhile)
    server = offline_server(CodingTaskServer, sandbox={"local": {}})
    server._sessions["s"] = ToolSession(Workspace(files={"a.py": ""}))
    try:
        with pytest.raises(EnvFailed, match="ended while its box was started"):
            await server.bash("true", "s")
        assert server._runner.provider._sandboxes == {}
    finally:
        await server._runner.aclose()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_the_first_hidden_test_of_a_problem_shows_its_bug(problem: Problem) -> None:
    """A hidden test that the broken repository passes would not prove a fix; the first one ends most verifications."""
    task = row(problem, 5)
    tests = task["verifier_metadata"]["hidden_tests"]
    broken = expected_outcomes(problem.files, [test["code"] for test in tests])

    expected = {key: value for key, value in tests[0].items() if key != "code"}
    assert broken[0] != expected


def test_rows_of_other_seeds_have_other_hidden_tests() -> None:
    """A policy that has seen one file of rows must not know the hidden tests of another."""
    first, second = (
        {row["verifier_metadata"]["problem"]: row["verifier_metadata"] for row in rows(6, seed=seed)} for seed in (0, 9)
    )

    assert all(first[name] != second[name] for name in first)


@pytest.mark.parametrize(
    ("name", "is_test"),
    [
        ("test_a.py", True),
        ("pkg/tests/data.txt", True),
        ("conftest.py", True),
        ("pkg/testing.py", False),
        ("contest.py", False),
    ],
)
def test_changes_of_tests_and_start_files_are_no_fix(name: str, is_test: bool) -> None:
    """An edited test or a patched interpreter must not reach the box of a hidden test."""
    assert is_test_file(name) is is_test


@pytest.mark.parametrize(
    ("stdout", "fields", "is_right"),
    [
        ('noise\n{"value": [1, 2.0]}\n', {"expected": [1.0, 2]}, True),
        ('{"value": true}', {"expected": 1}, False),
        ('{"raises": "ValueError"}', {"raises": "ValueError"}, True),
        ('{"raises": "SystemExit"}', {"expected": None}, False),
        ('{"value": 1, "raises": null}', {"expected": 1}, False),
        ("", {"expected": None}, False),
        ("[" * 100_000, {"expected": 1}, False),
        (f'{{"value": {10**400}}}', {"expected": 1}, False),
        (f'{{"value": {10**400}}}', {"expected": 10**400}, True),
    ],
)
def test_the_outcome_of_a_test_is_compared_as_data(stdout: str, fields: dict[str, Any], is_right: bool) -> None:
    """The output of the box is untrusted: only JSON of one form is an outcome."""
    assert (compare_outcome(stdout, HiddenTest(code="x", **fields)) is None) is is_right


def test_numbers_are_equal_by_value_and_texts_are_not_numbers() -> None:
    """A median may be 2 or 2.0, but not '2'."""
    assert are_equal({"a": [0.1 + 0.2]}, {"a": [0.3]})
    assert not are_equal("2", 2)
    assert not are_equal({"a": 1}, {"b": 1})


def test_the_scripted_solver_uses_the_shell_tool_of_any_agent() -> None:
    """Agents name their shell tool and its arguments differently."""
    array = {"command": {"type": "array"}, "timeout": {"type": "integer"}}
    tools = [
        {"type": "function", "name": "read_file", "parameters": {}},
        {"function": {"name": "Shell", "parameters": {"properties": array, "required": ["command", "timeout"]}}},
    ]

    tool = shell_tool(tools)

    assert tool is not None
    assert shell_call(tool, "ls") == {
        "name": "Shell",
        "arguments": {"command": ["bash", "-lc", "ls"], "timeout": 60},
    }
    assert next_turn(0, [], "", commands=["ls"], final_text="Done.") == {"text": "A title"}
