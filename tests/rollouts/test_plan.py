"""From dataset lines to jobs."""

import json
import logging
from collections import Counter

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.prompt import PromptConfig, apply_prompt_to_row
from nemo_gym.rollouts.plan import (
    AgentNames,
    InputRowsError,
    PlanOptions,
    added_repeats,
    plan_jobs,
    plan_more,
    read_lines,
)


def row(agent: str | None = "a", **fields):
    made = {"responses_create_params": {"input": "hi"}, **fields}
    return {**made, "agent_ref": {"type": "responses_api_agents", "name": agent}} if agent else made


def lines_of(*rows):
    return [(number, orjson.dumps(item) + b"\n") for number, item in enumerate(rows, start=1)]


def plan_rows(*rows, **options):
    return list(plan_jobs(lines_of(*rows), PlanOptions(**options), source="rows.jsonl"))


def keys(jobs):
    return [(job.key.task, job.key.rollout) for job in jobs]


def test_repeats_of_a_row_stand_together():
    """Row-major order keeps a group's rollouts close in time, and is what stored runs have."""
    jobs = plan_rows(row(x=1), row(x=2), repeats=2)

    assert keys(jobs) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [job.row["x"] for job in jobs] == [1, 1, 2, 2]
    assert [(job.row["_ng_task_index"], job.row["_ng_rollout_index"]) for job in jobs] == keys(jobs)


def test_identical_lines_share_a_task():
    """Collating with `num_repeats` duplicates lines; the copies are rollouts of one task, numbered on."""
    jobs = plan_rows(row(x=1), row(x=2), row(x=1), repeats=2)

    assert keys(jobs) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]


def test_a_task_is_numbered_by_its_first_line():
    """The number must not depend on later duplicates."""
    assert keys(plan_rows(row(x=1), row(x=1), row(x=2))) == [(0, 0), (0, 1), (2, 0)]


def test_a_task_number_of_the_rows_own_is_kept():
    """Shards of one dataset are scored together only if they agree on numbers."""
    jobs = plan_rows(row(_ng_task_index=70), row(_ng_task_index=70, x=2), row(_ng_task_index=1), row(), repeats=1)

    assert keys(jobs) == [(70, 0), (70, 1), (1, 0), (3, 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 12))), max_size=12), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_no_two_jobs_have_the_same_key(contents, repeats):
    """Resume, capture files and groups all go by the key."""
    rows = [row(x=x, **({} if task is None else {"_ng_task_index": task})) for x, task in contents]

    jobs = plan_rows(*rows, repeats=repeats)

    assert len(set(keys(jobs))) == len(jobs) == len(rows) * repeats


def test_repeats_can_differ_by_agent(caplog):
    """Some environments need more rollouts than others."""
    with caplog.at_level(logging.WARNING, logger="nemo_gym.rollouts"):
        jobs = plan_rows(row("a"), row("b"), row("c"), repeats={"a": 3, "_default": 1, "zeta": 2})

    assert [job.agent for job in jobs] == ["a", "a", "a", "b", "c"]
    assert "agents that no row uses: zeta" in caplog.text


def test_agents_without_a_repeat_count_are_all_named():
    """One message instead of one per try."""
    with pytest.raises(ValueError, match=r"line 2: .*'b'.*line 3: .*'c'"):
        plan_rows(row("a"), row("b"), row("c"), repeats={"a": 3})


def test_the_agent_of_the_run_does_not_override_the_rows():
    """Mixed datasets name an agent per row."""
    jobs = plan_rows(row("a"), row(None), agent_name="b")

    assert [job.agent for job in jobs] == ["a", "b"]
    assert jobs[1].row["agent_ref"] == {"type": "responses_api_agents", "name": "b"}


def test_rows_without_an_agent_are_listed_by_line():
    """One look at the message must be enough to fix the file."""
    with pytest.raises(InputRowsError) as caught:
        plan_rows(row("a"), row(None), row("a"), row(None))

    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ConfigError)
    assert "rows.jsonl" in str(caught.value)
    assert "lines 2, 4: " in str(caught.value)


def test_rows_without_an_agent_go_to_the_only_one():
    """A user's row needs nothing but its question if there is no choice."""
    (job,) = plan_rows(row(None), agents=AgentNames(["solo"]))

    assert job.agent == "solo"


def test_with_several_agents_the_flag_that_chooses_one_is_named():
    """A guess would give the rows to another environment."""
    with pytest.raises(InputRowsError, match="use --agent NAME: one of math, quiz"):
        plan_rows(row(None), agents=AgentNames(["quiz", "math"]))


def test_a_thousand_bad_rows_make_a_short_message():
    """The cause must stay visible on a terminal."""
    with pytest.raises(InputRowsError, match="lines 1–1000: ") as caught:
        plan_rows(*[row(None)] * 1000)

    assert len(str(caught.value)) < 300


def test_all_kinds_of_problems_are_reported_together():
    """Users fix a file once, not problem by problem."""
    with pytest.raises(InputRowsError, match=r"line 1: .*responses_create_params.*line 2: .*agent_ref"):
        plan_rows({"agent_ref": {"name": "a"}}, row(None))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "the line is a list, not a JSON object"),
        (b'{"a": NaN}', "is not JSON"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_line_that_is_no_row_is_named(line, message):
    """The line number is what the user needs to fix it."""
    with pytest.raises(ConfigError, match=message) as caught:
        list(plan_jobs([(1, orjson.dumps(row())), (7, line)], PlanOptions(), source="rows.jsonl"))

    assert str(caught.value).startswith("rows.jsonl: line 7: ")


def test_every_broken_line_is_reported_at_once():
    """Users fix a file once, not line by line; a byte order mark is invisible in editors."""
    lines = [(1, b"\xef\xbb\xbf{}"), (2, b"{"), (3, b"{")]

    with pytest.raises(InputRowsError, match=r"line 1: .*byte order mark.*save the file without it.*lines 2–3: "):
        list(plan_jobs(lines, PlanOptions(), source="rows.jsonl"))


def test_overrides_win_and_are_shallow():
    """A deep merge would keep settings the user replaced."""
    jobs = plan_rows(
        {
            **row(),
            "responses_create_params": {"input": "hi", "reasoning": {"effort": "low", "summary": "x"}, "top_p": 1},
        },
        overrides={"reasoning": {"effort": "high"}, "temperature": 0.5},
    )

    assert jobs[0].row["responses_create_params"] == {
        "input": "hi",
        "reasoning": {"effort": "high"},
        "top_p": 1,
        "temperature": 0.5,
    }


def test_seeds_count_rollouts_and_leave_the_rest_of_the_extra_body():
    """Repeats need different seeds and the row's other options."""
    given_body = json.dumps({"top_k": 4})
    params = {"input": "hi", "metadata": {"a": "b", "extra_body": given_body}}

    jobs = plan_rows({**row(), "responses_create_params": params}, row(), repeats=2, add_seed=True)

    metadata = [job.row["responses_create_params"]["metadata"] for job in jobs]
    assert [json.loads(item["extra_body"]) for item in metadata] == [
        {"top_k": 4, "seed": 0},
        {"top_k": 4, "seed": 1},
        {"seed": 0},
        {"seed": 1},
    ]
    assert metadata[0]["a"] == "b"


def test_an_extra_body_that_is_no_object_is_named():
    """The model server would refuse it hours later."""
    params = {"input": "hi", "metadata": {"extra_body": "[1]"}}

    with pytest.raises(InputRowsError, match="extra_body is not a JSON object") as caught:
        plan_rows({**row(), "responses_create_params": params}, add_seed=True)

    assert caught.value.where == "rows.jsonl:1"


def test_other_fields_pass_untouched_and_skills_are_stamped():
    """Verifiers read their own fields from the row."""
    job = plan_rows(row(verifier_metadata={"n": [1]}, _ng_rollout_id="mine"), skills_ref={"hash": "abc"})[0]

    assert job.row["verifier_metadata"] == {"n": [1]}
    assert job.row["_ng_rollout_id"] == "mine"
    assert job.row["skills_ref"] == {"hash": "abc"}


def prompt(template="Q: {q}"):
    config = PromptConfig(user=template)
    return lambda item, where: apply_prompt_to_row(item, config, where=where)


def test_repeats_of_a_row_with_an_id_have_ids_of_their_own():
    """Model calls and tokens are captured by id: with one id, repeats would delete and mix what they captured."""
    ids = [job.row["_ng_rollout_id"] for job in plan_rows(row(_ng_rollout_id="mine"), repeats=3)]

    assert ids == ["mine", "mine-1", "mine-2"]


def test_a_prompt_builds_the_input():
    """Datasets store questions, not prompts."""
    bare = {"q": "why?", "agent_ref": {"name": "a"}}

    jobs = plan_rows(bare, {**bare, "responses_create_params": {"top_p": 0.5}}, fill_prompt=prompt())

    assert jobs[0].row["responses_create_params"] == {"input": [{"role": "user", "content": "Q: why?"}]}
    assert jobs[1].row["responses_create_params"]["top_p"] == 0.5


def test_a_prompt_does_not_replace_an_input():
    """Two sources of a prompt are a mistake in the configuration."""
    with pytest.raises(InputRowsError, match=r"line 2: .*input' exists"):
        plan_rows({"q": 1, "agent_ref": {"name": "a"}}, row(q=1), fill_prompt=prompt())


def test_a_field_the_prompt_lacks_is_named_with_its_line():
    """The model would otherwise see an unfilled template."""
    with pytest.raises(KeyError, match=r"rows.jsonl:1.*'q'"):
        plan_rows({"agent_ref": {"name": "a"}}, fill_prompt=prompt())


def test_lines_are_read_up_to_the_limit_and_blank_ones_do_not_count(tmp_path):
    """A limit of 5 means five rows."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"a":2}\n   \n{"a":3}')

    assert [number for number, _ in read_lines(path)] == [1, 3, 5]
    assert [number for number, _ in read_lines(path, 2)] == [1, 3]
    assert [number for number, _ in read_lines(path, 0)] == [1, 3, 5]


def test_an_input_that_is_not_there_is_a_configuration_error(tmp_path):
    """It must be reported without a traceback."""
    with pytest.raises(ConfigPathNotFoundError, match=r"nowhere\.jsonl"):
        list(read_lines(tmp_path / "nowhere.jsonl"))


def test_jobs_are_planned_as_they_are_taken():
    """A dataset larger than memory must be possible."""
    taken = []

    def endless():
        number = 0
        while True:
            number += 1
            taken.append(number)
            yield number, orjson.dumps(row(x=number))

    jobs = plan_jobs(endless(), PlanOptions(), source="endless")

    assert keys([next(jobs), next(jobs)]) == [(0, 0), (1, 0)]
    assert taken == [1, 2]


@pytest.mark.parametrize("number", [-1, "3", 1.5, True])
def test_an_invalid_task_number_is_refused(number):
    """It would collide with another task."""
    with pytest.raises(InputRowsError, match="_ng_task_index must be a whole number") as caught:
        plan_rows(row(_ng_task_index=number))

    assert caught.value.where == "rows.jsonl:1"


ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.none() | st.integers(0, 5)), max_size=8)


@given(ROWS, st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_more_repeats_add_rollouts_and_change_none(contents, before, more):
    """A run resumed with more repeats has what it would have had from the start, and keeps what it has."""
    lines = lines_of(
        *(row(agent, x=x, **({} if task is None else {"_ng_task_index": task})) for x, agent, task in contents)
    )
    first = list(plan_jobs(lines, PlanOptions(repeats=before), source="rows"))
    added = list(plan_more(lambda: lines, PlanOptions(repeats=before + more), earlier_repeats=before, source="rows"))

    whole = list(plan_jobs(lines, PlanOptions(repeats=before + more), source="rows"))

    assert sorted(keys(first) + keys(added)) == sorted(keys(whole))
    assert len(set(keys(first) + keys(added))) == len(first) + len(added)

    def content(jobs):
        kept = (frozenset((name, str(job.row[name])) for name in ("x", "agent_ref", "_ng_task_index")) for job in jobs)
        return Counter(kept)

    assert content(first + added) == content(whole)


def test_more_repeats_are_counted_by_agent():
    """Resuming with more repeats adds exactly the difference."""
    assert added_repeats(2, 3) == {"_default": 1}
    assert added_repeats(2, {"a": 5, "_default": 2}) == {"a": 3, "_default": 0}
    assert added_repeats({"a": 4, "_default": 1}, 2) == {"a": -2, "_default": 1}
    assert added_repeats({"a": 1}, {"a": 1}) == {"a": 0}


def test_the_attempt_of_an_earlier_run_is_not_taken_over():
    """Rows of a materialized file, or of failures, are rows like any other."""
    (job,) = plan_rows(row(_ng_attempt_index=2, _ng_rollout_index=7, _ng_seconds=3.0, _ng_phases={"model": 2.0}))

    assert keys([job]) == [(0, 0)]
    assert not {"_ng_attempt_index", "_ng_seconds", "_ng_phases"} & set(job.row)
