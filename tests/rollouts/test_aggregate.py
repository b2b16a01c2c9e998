"""Scores per agent, gathered in one pass."""

import orjson
import pytest
from aiohttp import ClientResponseError

from nemo_gym.errors import AgentFailed, ServerUnreachable
from nemo_gym.journal import StoreError
from nemo_gym.metrics.aggregate import compute_aggregate_metrics
from nemo_gym.rollouts.aggregate import (
    RolloutsByAgent,
    fetch_metrics,
    metrics_entries,
    metrics_entry,
    strip_conversation,
    write_metrics,
)

BIG = {
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
    "responses_create_params": {"input": "…"},
    "ng_agent_observations": {},
    "ng_model_call_capture": {},
    "ng_trajectory": {},
    "response": {"output": [1], "usage": {"total_tokens": 3}},
    "reward": 1.0,
    "agent_ref": {"name": "a"},
}


def record(task, rollout, reward, agent="a", **fields):
    place = {"_ng_task_index": task, "_ng_rollout_index": rollout}
    return {**place, "reward": reward, "agent_ref": {"name": agent}, **fields}


async def aggregate(records, fetch, has_own_metrics=lambda _: True):
    by_agent = RolloutsByAgent(has_own_metrics=has_own_metrics)
    for one in records:
        by_agent.add(one)
    return await metrics_entries(by_agent, fetch)


async def nobody(agent, records):
    raise AssertionError("nobody should be asked")


def test_conversations_are_not_sent_but_usage_is():
    """They are most of the size and no part of a score."""
    kept = strip_conversation(BIG)

    assert kept == {
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "reward": 1.0,
        "agent_ref": {"name": "a"},
        "response": {"usage": {"total_tokens": 3}},
    }
    assert strip_conversation({"reward": 1, "response": {"usage": None}}) == {"reward": 1}


@pytest.mark.asyncio
async def test_one_agent_without_metrics_does_not_cost_the_others(tmp_path):
    """What was computed is written; who failed is named."""

    async def ask(agent, records):
        if agent == "b":
            raise AgentFailed("down", where="b")
        return {"agent_metrics": {"own": 1.0}, "key_metrics": {"own": 1.0}, "other": 1}

    entries, failed = await aggregate([BIG, record(0, 0, 0.0, "b")], ask)
    write_metrics(tmp_path / "deep" / "m.json", entries)

    (entry,) = orjson.loads((tmp_path / "deep" / "m.json").read_bytes())
    assert entry["agent_ref"] == {"name": "a"}
    assert (entry["agent_metrics"], entry["key_metrics"], entry["group_level_metrics"]) == ({"own": 1}, {"own": 1}, [])
    assert entry["scores"]["reward"]["mean"] == 1.0
    assert list(failed) == ["b"]


@pytest.mark.asyncio
async def test_without_asking_the_figures_are_the_standard_ones(tmp_path):
    """Computed from the file alone, to the same numbers and keys as a server without hooks answers."""
    rows = [record(1, 0, 0.5, steps=2), record(0, 1, 1.0), record(0, 0, 0.0, steps=4)]

    entries, failed = await aggregate(rows, nobody, has_own_metrics=lambda _: False)
    write_metrics(tmp_path / "m.json", entries)

    (entry,) = orjson.loads((tmp_path / "m.json").read_bytes())
    answer = compute_aggregate_metrics(rows)
    assert not failed
    assert entry["agent_metrics"] == answer.agent_metrics
    assert list(entry["agent_metrics"]) == list(answer.agent_metrics)
    assert entry["key_metrics"] == answer.key_metrics
    assert entry["group_level_metrics"] == answer.group_level_metrics


@pytest.mark.asyncio
async def test_the_file_is_indented_as_if_written_in_one_piece(tmp_path):
    """Written task by task, and still the file that people diff."""
    rows = [record(0, 0, 1.0, note="two\nlines"), record(1, 0, 0.0), record(0, 0, 1.0, "b")]
    entries, _ = await aggregate(rows, nobody, has_own_metrics=lambda _: False)

    write_metrics(tmp_path / "m.json", entries)

    text = (tmp_path / "m.json").read_bytes()
    assert text == orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2)


@pytest.mark.parametrize("entries", [[], [{"agent_ref": {"name": "a"}, "group_level_metrics": iter([])}]])
def test_a_file_without_tasks_is_still_json(tmp_path, entries):
    """An empty run has an empty answer."""
    write_metrics(tmp_path / "m.json", entries)

    assert isinstance(orjson.loads((tmp_path / "m.json").read_bytes()), list)


@pytest.mark.asyncio
async def test_records_without_an_agent_are_counted_and_nobody_is_asked_about_them():
    """A file written by hand has scores too; dropping it without a word would be worse."""
    entries, failed = await aggregate([{"reward": 1.0}, {"reward": 0.0}], nobody)

    assert [entry["agent_ref"]["name"] for entry in entries] == ["agent"]
    assert entries[0]["agent_metrics"]["mean/reward"] == 0.5
    assert not failed


def test_failures_count_unless_the_rollout_was_scored_in_the_end():
    """The failures file keeps every attempt; the summary counts rollouts."""
    gathered = RolloutsByAgent()
    gathered.add(record(0, 0, 1.0))
    gathered.add_failure(record(0, 0, 0.0, _ng_failure_class="timeout"))
    gathered.add_failure(record(0, 1, 0.0, _ng_failure_class="timeout"))
    gathered.add_failure(record(0, 1, 0.0, _ng_failure_class="judge_failed", _ng_attempt_index=1))
    gathered.add_failure(record(0, 2, 0.0, _ng_failure_class="x", _ng_no_persist=True))

    entry = metrics_entry("a", gathered.agents["a"])

    assert entry["attrition"] == {"scored": 1, "failed": 1, "failed_by_kind": {"judge_failed": 1}}
    assert entry["scores"]["reward"]["failures_as_zero"]["mean"] == 0.5
    assert entry["agent_metrics"] == compute_aggregate_metrics([record(0, 0, 1.0)]).agent_metrics


@pytest.mark.asyncio
async def test_parts_of_the_data_are_scored_apart():
    """A mean over easy and hard tasks hides both."""
    gathered = RolloutsByAgent(subset_of=lambda row: row.get("level"))
    for row in (record(0, 0, 1.0, level="easy"), record(1, 0, 0.0, level="hard"), record(2, 0, 0.5)):
        gathered.add(row)

    entries, _ = await metrics_entries(gathered, nobody)

    subsets = entries[0]["subsets"]
    assert {name: scores["reward"]["mean"] for name, scores in subsets.items()} == {"easy": 1.0, "hard": 0.0}


def test_metrics_that_cannot_be_written_are_an_error_with_a_place(tmp_path):
    """Not a traceback at the end of a long run."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"m\.json: cannot write"):
        write_metrics(tmp_path / "file" / "m.json", [])


@pytest.mark.asyncio
async def test_scoring_the_same_rollouts_again_gives_the_same_bytes(tmp_path):
    """However they were ordered when they finished: a score that can be checked is one that can be trusted."""
    rows = [record(t, r, float(t == r), agent) for agent in "ab" for t in range(3) for r in range(2)]
    requests = []

    async def ask(agent, records):
        requests.append([(one["_ng_task_index"], one["_ng_rollout_index"]) for one in records])
        return compute_aggregate_metrics(records).model_dump()

    for name, order in (("one", rows), ("two", rows[:1] + rows[:0:-1])):
        entries, _ = await aggregate(order, ask)
        write_metrics(tmp_path / name, entries)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert all(places == sorted(places) for places in requests)


@pytest.mark.asyncio
async def test_rollouts_that_were_not_verified_have_no_scores():
    """Their reward is a stand-in; the agent makes no metrics of it, and neither do we."""

    async def ask(agent, records):
        return {"agent_metrics": {}, "key_metrics": {}, "group_level_metrics": []}

    entries, _ = await aggregate([record(0, 0, 0.0)], ask)

    assert entries[0]["scores"] == {}
    assert entries[0]["attrition"]["scored"] == 1


@pytest.mark.asyncio
async def test_metrics_survive_the_end_of_the_process_that_computes_them():
    """A run with all its scores must not fail because another server blocked the cell of the agent at the end."""
    calls = []

    class Client:
        async def post(self, **options):
            calls.append(options)
            if len(calls) < 3:
                raise ServerUnreachable("cell 0 ended before it answered", where="other")
            raise ClientResponseError(None, (), status=500)

    with pytest.raises(AgentFailed, match="answered 500"):
        await fetch_metrics(Client(), "agent", [])

    assert len(calls) == 3
