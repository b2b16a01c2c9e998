"""All problems of rows are reported together in a short message."""

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.plan import AgentNames, InputRowsError, PlanOptions, check_rows, plan_jobs


def options_for() -> AgentNames:
    return AgentNames(["math_agent", "code_agent"])


def lines(*agents: str) -> list[tuple[int, bytes]]:
    return [
        (number, b'{"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "%s"}}' % agent.encode())
        for number, agent in enumerate(agents, start=1)
    ]


@pytest.mark.parametrize(
    "look", [check_rows, lambda *args, **more: list(plan_jobs(*args, **more))], ids=["check", "plan"]
)
def test_unknown_agents_are_reported_together_with_lines_and_suggestions(look) -> None:
    """One misspelt name in a file of a million rows would otherwise fail rollout by rollout, hours later."""
    rows = lines("math_agent", "maths_agent", "code_agent", "quiz", "maths_agent")

    with pytest.raises(InputRowsError) as raised:
        look(rows, PlanOptions(agents=options_for()), source="rows.jsonl")

    message = str(raised.value)
    assert message.startswith("rows.jsonl: ")
    assert "lines 2, 5: unknown agent 'maths_agent' — did you mean 'math_agent'?" in message
    assert "line 4: unknown agent 'quiz'; configured: code_agent, math_agent" in message


def test_the_message_stays_short_whatever_rows_name() -> None:
    """A file of another dataset, with a thousand unknown names."""
    with pytest.raises(InputRowsError) as raised:
        check_rows(lines(*(f"x{n}" for n in range(1000))), PlanOptions(agents=options_for()), source="rows.jsonl")

    assert "lines 11–1000: more unknown agents" in str(raised.value)
    assert len(str(raised.value)) < 2000


def test_without_agents_every_name_is_unknown_and_without_knowledge_none_is() -> None:
    """A configuration without agents cannot run anything; a library user may not know them."""
    check_rows(lines("anybody"), PlanOptions(), source="rows.jsonl")

    with pytest.raises(InputRowsError, match="unknown agent 'anybody'; no agents are configured"):
        check_rows(lines("anybody"), PlanOptions(agents=AgentNames([])), source="rows.jsonl")


@pytest.mark.parametrize(
    ("line", "options", "problem"),
    [
        (b"{", {}, "not JSON"),
        (b'{"agent_ref": {"name": "math_agent"}}', {}, "no object 'responses_create_params'"),
        (lines("code_agent")[0][1], {"repeats": {"math_agent": 2}}, "num_repeats has neither agent 'code_agent'"),
        (b'{"_ng_task_index": -1, "responses_create_params": {}}', {"agent_name": "math_agent"}, "whole number"),
        (
            b'{"responses_create_params": {"metadata": {"extra_body": "["}}}',
            {"agent_name": "math_agent", "add_seed": True},
            "extra_body is not a JSON object",
        ),
    ],
)
def test_checking_finds_what_planning_would(line: bytes, options: dict, problem: str) -> None:
    """Otherwise servers are started for rows that cannot be sent."""
    made = PlanOptions(agents=options_for(), **options)

    with pytest.raises(ConfigError, match=problem):
        list(plan_jobs([(1, line)], made, source="rows.jsonl"))
    with pytest.raises(ConfigError, match=problem):
        check_rows([(1, line)], made, source="rows.jsonl")


def test_the_message_stays_short_when_every_other_row_is_wrong() -> None:
    """Half a million line numbers help no one."""
    with pytest.raises(InputRowsError) as raised:
        check_rows(lines(*["quiz", "math_agent"] * 1000), PlanOptions(agents=options_for()), source="rows.jsonl")

    assert "197, 199, … (1000 in all): unknown agent 'quiz'" in str(raised.value)
