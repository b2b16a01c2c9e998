"""Collecting rollouts from agents that run in this process, as trainers and commands do it."""

import asyncio
import json
import logging
from collections import Counter

import pytest
from fastapi import Body
from pydantic import ValidationError

import nemo_gym.rollout_collection as rollout_collection
from nemo_gym.capture.record import ModelCallRecord
from nemo_gym.capture.store import CaptureStore
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import AgentFailed, ConfigError
from nemo_gym.journal import read_rows
from nemo_gym.rollout_collection import (
    E2ERolloutCollectionConfig,
    RolloutCollectionHelper,
    _attach_trajectory_record,
    _get_max_rollout_attempts,
)
from nemo_gym.rollouts.outcome import ScoredRollout
from nemo_gym.server_utils import setup_server_client
from nemo_gym.transport import in_process
from tests import rollout_world
from tests.rollout_world import PORTS, Agent, RunRequest, World, config_of, rollout_ids, row, stored_rows

MODEL_OUTPUT = {"usage": {"total_tokens": 7}}


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


@pytest.mark.asyncio
async def test_rows_become_stored_rollouts_and_metrics(world, tmp_path):
    """The whole way: rows, repeats, two agents, files, metrics per agent."""
    config = config_of(tmp_path, row(1), row(0), row(5, "b"), num_repeats={"a": 2, "_default": 1})

    results = await world.helper().run_from_config(config)

    assert rollout_ids(results) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert [result["reward"] for result in results] == [1, 1, 0, 0, 5]
    assert sorted(rollout_ids(stored_rows(tmp_path))) == rollout_ids(results)
    assert rollout_ids(stored_rows(tmp_path, "x_materialized_inputs.jsonl")) == rollout_ids(results)
    assert stored_rows(tmp_path, "x_failures.jsonl") == []
    metrics = {
        entry["agent_ref"]["name"]: entry
        for entry in json.loads((tmp_path / "out/x_aggregate_metrics.json").read_text())
    }
    assert metrics["a"]["agent_metrics"]["mean/reward"] == 0.5
    assert metrics["b"]["key_metrics"]["mean/reward"] == 5
    assert [len(entry["group_level_metrics"]) for entry in (metrics["a"], metrics["b"])] == [2, 1]


@pytest.mark.asyncio
async def test_one_failed_run_is_a_failure_row_and_the_others_are_scored(world, tmp_path):
    """A night's collection must not end because one agent answered 500 once."""
    rows = [row(0), row(1, do="crash"), row(2, do="judge"), row(3, do="nothing"), row(4, do="forget"), row(5)]

    results = await world.helper().run_from_config(config_of(tmp_path, *rows))

    assert [item["_ng_task_index"] for item in stored_rows(tmp_path)] == [0, 5]
    lines = stored_rows(tmp_path, "x_failures.jsonl")
    failures = {item["_ng_task_index"]: item for item in lines}
    attempts = Counter(item["_ng_task_index"] for item in lines)
    assert attempts == {1: 2, 2: 2, 3: 1}, "every attempt is kept; a reward that makes no sense is not asked for twice"
    assert {task: item["_ng_failure_class"] for task, item in failures.items()} == {
        1: "agent_error",
        2: "judge_failed",
        3: "invalid_reward",
    }
    assert "boom in the agent" in failures[1]["_ng_failure"]["message"]
    assert failures[1]["_ng_failure"]["whom"] == "a"
    assert not [item for item in failures.values() if "reward" in item]
    assert [item["_ng_task_index"] for item in results] == list(range(6)), "the caller sees every row"
    mean = json.loads((tmp_path / "out/x_aggregate_metrics.json").read_text())[0]["agent_metrics"]["mean/reward"]
    assert mean == 2.5, "failures never enter a mean"


@pytest.mark.asyncio
async def test_a_failure_is_attributed_to_whoever_failed_first(world, tmp_path):
    """The agent answered 500, but the verifier is what has to be fixed."""
    await world.helper().run_from_config(config_of(tmp_path, row(0, do="verify"), disable_aggregation=True))

    failure = stored_rows(tmp_path, "x_failures.jsonl")[-1]
    assert failure["_ng_failure_class"] == "verifier_error"
    assert (failure["_ng_failure"]["phase"], failure["_ng_failure"]["whom"]) == ("verify", "r")
    assert "no verdict" in failure["_ng_failure"]["message"]


@pytest.mark.asyncio
async def test_a_broken_tool_differs_from_a_broken_verifier(world, tmp_path):
    """Different people fix them."""
    await world.helper().run_from_config(config_of(tmp_path, row(0, do="broken tool"), disable_aggregation=True))

    failure = stored_rows(tmp_path, "x_failures.jsonl")[-1]
    assert failure["_ng_failure_class"] == "tool_error"
    assert (failure["_ng_failure"]["phase"], failure["_ng_failure"]["whom"]) == ("environment", "r")


@pytest.mark.asyncio
async def test_an_unreachable_agent_is_named(world, tmp_path, monkeypatch):
    """The user must know which server to start."""
    monkeypatch.setattr("random.uniform", lambda low, high: low)  # no pauses between the attempts to connect
    in_process.unmount("127.0.0.1", PORTS["b"])
    config = config_of(tmp_path, row(0), row(1, "b"), disable_aggregation=True, max_rollout_attempts=1)

    await world.helper().run_from_config(config)

    (failure,) = stored_rows(tmp_path, "x_failures.jsonl")
    assert (failure["_ng_failure_class"], failure["_ng_failure"]["whom"]) == ("server_died", "b")
    assert not (tmp_path / "out/x_aggregate_metrics.json").exists()


@pytest.mark.asyncio
async def test_a_resumed_run_sends_only_what_is_missing(world, tmp_path):
    """Each (task, rollout) exactly once, whatever happened the first time."""
    rows = [row(0), row(1), row(2, do="terminal"), row(3, do="forget")]
    world.agents["a"].broken = {1}
    await world.helper().run_from_config(config_of(tmp_path, *rows, num_repeats=2))
    (tmp_path / "in.jsonl").unlink()  # what is resumed is what was written down, not the file of today
    with (tmp_path / "out/x.jsonl").open("ab") as file:
        file.write(b'{"_ng_task_index": 1, "torn')
    world.agents["a"].broken = set()
    world.agents["a"].seen.clear()

    results = await world.helper().run_from_config(config_of(tmp_path, num_repeats=2, resume_from_cache=True))

    assert sorted(rollout_ids(world.sent_rows)) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert [item.get("_ng_attempt_index") for item in world.sent_rows if item["n"] == 1] == [2, 2]
    assert [item.get("_ng_attempt_index") for item in world.sent_rows if item["n"] == 3] == [None, None]
    assert Counter(rollout_ids(stored_rows(tmp_path))) == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)], 1)
    assert rollout_ids(results) == [(0, 0), (0, 1), (1, 0), (1, 1), (3, 0), (3, 1)]


@pytest.mark.asyncio
async def test_a_rollout_is_given_up_after_its_last_attempt(world, tmp_path, monkeypatch):
    """A resumed run must come to an end."""
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "2")
    world.agents["a"].broken = {1}
    for resume in (False, True, True):
        options = {"resume_from_cache": resume, "disable_aggregation": True}
        await world.helper().run_from_config(config_of(tmp_path, row(0), row(1), **options))

    assert [item["n"] for item in world.sent_rows] == [0, 1, 1]
    assert len(stored_rows(tmp_path, "x_failures.jsonl")) == 2


@pytest.mark.asyncio
async def test_resuming_nothing_starts_over_and_a_fresh_run_clears_the_old(world, tmp_path, caplog):
    """A script can always pass --resume."""
    with caplog.at_level(logging.INFO, logger="nemo_gym.rollouts"):
        await world.helper().run_from_config(config_of(tmp_path, row(0, do="crash"), resume_from_cache=True))
    await world.helper().run_from_config(config_of(tmp_path, row(7)))

    assert "nothing to resume" in caplog.text
    assert [item["reward"] for item in stored_rows(tmp_path)] == [7]
    assert stored_rows(tmp_path, "x_failures.jsonl") == []


@pytest.mark.asyncio
async def test_rows_that_cannot_be_sent_stop_the_run_before_anything_is_sent_or_removed(world, tmp_path):
    """A mistake in the file must not cost earlier results."""
    await world.helper().run_from_config(config_of(tmp_path, row(7)))
    bad = {"responses_create_params": {"input": "hi"}, "n": 1}

    with pytest.raises(ConfigError, match="line 2"):
        await world.helper().run_from_config(config_of(tmp_path, row(1), bad))

    assert [item["n"] for item in world.sent_rows] == [7]
    assert [item["reward"] for item in stored_rows(tmp_path)] == [7]


@pytest.mark.asyncio
async def test_an_earlier_output_stays_when_no_servers_are_running(world, tmp_path):
    """Starting over in the wrong terminal must not cost the results."""
    await world.helper().run_from_config(config_of(tmp_path, row(7)))
    nobody = RolloutCollectionHelper()
    nobody.setup_server_client = lambda head_server_config=None: setup_server_client(
        BaseServerConfig(host="127.0.0.1", port=4)
    )

    with pytest.raises(ValueError, match="head server"):
        await nobody.run_from_config(config_of(tmp_path, row(8)))

    assert [item["reward"] for item in stored_rows(tmp_path)] == [7]


@pytest.mark.asyncio
async def test_prompt_overrides_skills_and_seeds_reach_the_agent(world, tmp_path):
    """Otherwise the run is another one than configured."""
    prompt = tmp_path / "prompt.yaml"
    prompt.write_text("system: Be short.\nuser: 'Q: {q}'\n")
    skill = tmp_path / "skills" / "one"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: one\n---\nbody\n")
    config = config_of(
        tmp_path,
        {"n": 1, "q": "why?"},
        agent_name="a",
        prompt_config=str(prompt),
        responses_create_params={"temperature": 0.5},
        num_repeats=2,
        num_repeats_add_seed=True,
        skills={"path": str(tmp_path / "skills")},
    )

    results = await world.helper().run_from_config(config)

    params = [item["responses_create_params"] for item in world.sent_rows]
    assert params[0]["input"][1]["content"] == "Q: why?"
    assert params[0]["temperature"] == 0.5
    assert [json.loads(item["metadata"]["extra_body"]) for item in params] == [{"seed": 0}, {"seed": 1}]
    assert results[0]["skills_ref"]["skills"][0]["name"] == "one"
    assert results[0]["agent_ref"]["name"] == "a"


@pytest.mark.asyncio
async def test_observers_see_every_outcome_after_it_is_stored(world, tmp_path):
    """Progress views and limits are built on this."""
    seen = []

    def watch(outcome):
        lines = (tmp_path / "out/x.jsonl").read_bytes().count(b"\n")
        seen.append((type(outcome) is ScoredRollout, lines))

    tally = await world.helper(observers=[watch]).collect_from_config(
        config_of(tmp_path, row(0), row(1, do="crash"), row(2), num_samples_in_parallel=1)
    )

    assert seen == [(True, 1), (False, 1), (True, 2)]
    assert str(tally) == "2 scored · 1 failed (agent_error 1)"


@pytest.mark.asyncio
async def test_an_agent_without_metrics_is_an_error_after_the_rollouts_are_stored(world, tmp_path, monkeypatch):
    """The rollouts can be aggregated later."""
    monkeypatch.setattr(Agent, "compute_metrics", lambda self, tasks: 1 / 0)

    with pytest.raises(AgentFailed, match="1 of 1 agents returned no metrics") as caught:
        await world.helper().run_from_config(config_of(tmp_path, row(0)))

    assert "gym eval aggregate" in str(caught.value)
    assert len(stored_rows(tmp_path)) == 1


@pytest.mark.asyncio
async def test_examples_are_handed_back_with_their_rows(world):
    """The interface trainers use: one awaitable per row; a failed one raises alone."""
    rows = [{**row(n), "tag": n} for n in range(3)] + [row(9, do="crash")]

    good, bad = {}, 0
    for awaitable in world.helper().run_examples(rows):
        try:
            sent, result = await awaitable
            good[sent["tag"]] = result["reward"]
        except Exception as error:
            bad += 1
            assert error.status == 500

    assert good == {0: 0, 1: 1, 2: 2}
    assert bad == 1


@pytest.mark.asyncio
async def test_a_run_that_must_be_complete_fails_after_its_results_are_stored(world, tmp_path):
    """A score over fewer rollouts than planned must not pass for the score of the benchmark."""
    rows = [row(0), row(9, do="crash")]

    with pytest.raises(RuntimeError, match=r"EVAL FAILED: 1/2 rollouts"):
        await world.helper().run_from_config(config_of(tmp_path, *rows, require_complete=True))
    assert len(stored_rows(tmp_path)) == 1

    complete = config_of(tmp_path, row(0), row(1), require_complete=True, overwrite=True)
    assert len(await world.helper().run_from_config(complete)) == 2


@pytest.mark.asyncio
async def test_results_may_be_left_on_disk(world, tmp_path):
    """The list of all results would be as large as the output."""
    config = config_of(tmp_path, row(0), row(1), retain_results_in_memory=False, max_resident_rollout_tasks=1)

    assert await world.helper().run_from_config(config) == []
    assert len(stored_rows(tmp_path)) == 2


@pytest.mark.asyncio
async def test_failed_examples_may_be_results_without_a_reward(world):
    """A trainer that stores them knows class and status; the reward of a failure would be trained on."""
    rows = [row(0), row(9, do="crash")]

    results = [await one for one in world.helper().run_examples(rows, route_failures_to_sidecar=True)]

    (failure,) = (result for sent, result in results if sent is rows[1])
    assert (failure["_ng_failure_class"], failure["_ng_failure_http_status"]) == ("agent_run_error", 500)
    assert "reward" not in failure
    assert sum("reward" in result for _, result in results) == 1


@pytest.mark.asyncio
async def test_a_semaphore_bounds_the_examples_in_flight(world, monkeypatch):
    """Trainers share one bound between several batches."""
    flying = most = 0
    real = rollout_collection.run_on_agent

    async def observe(client, sent, **options):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)  # an agent in this process may answer without ever waiting
        try:
            return await real(client, sent, **options)
        finally:
            flying -= 1

    monkeypatch.setattr(rollout_collection, "run_on_agent", observe)

    for awaitable in world.helper().run_examples([row(n) for n in range(10)], semaphore=asyncio.Semaphore(2)):
        await awaitable

    assert most == 2


@pytest.mark.asyncio
async def test_captured_model_calls_are_joined_to_the_record(world, tmp_path, monkeypatch):
    """With observability on a row shows what the model was asked, and nothing of an attempt that was cut short."""
    captures = CaptureStore(tmp_path / "captures")
    stale = ModelCallRecord(
        model_call_id="old",
        call_index=0,
        dialect="responses",
        started_at=0,
        completed_at=1,
        latency_ms=1,
        response={"id": "r"},
    )
    captures.append("0-0", stale)
    monkeypatch.setattr(
        rollout_collection,
        "get_global_config_dict",
        lambda: {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "captures")},
    )
    original = Agent.run

    async def calling_the_model(self, body: RunRequest = Body()) -> dict:
        captures.append("0-0", stale.model_copy(update={"model_call_id": "new"}))
        return await original(self, body)

    monkeypatch.setattr(Agent, "run", calling_the_model)
    world = World()

    (result,) = await world.helper().run_from_config(config_of(tmp_path, row(1)))

    assert [call["model_call_id"] for call in result["ng_model_call_capture"]["calls"]] == ["new"]
    assert result["ng_trajectory"]["turns"][0]["model_calls"][0]["model_call_id"] == "new"
    assert result["ng_trajectory"]["rollout_id"] == "0-0"


def test_attempts_come_from_the_environment_and_nonsense_is_a_warning(monkeypatch, caplog):
    """Cluster scripts set it for all runs."""
    assert _get_max_rollout_attempts() == 3
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "5")
    assert _get_max_rollout_attempts() == 5
    for nonsense in ("0", "-1", "many", ""):
        monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", nonsense)
        assert _get_max_rollout_attempts() == 3
    assert "must be a whole number from 1, not 'many'" in caplog.text


def test_a_trajectory_is_attached_only_when_something_was_observed():
    """Records stay small otherwise."""
    result = {"reward": 1, "ng_agent_observations": {"source": "s"}}

    assert _attach_trajectory_record({"_ng_task_index": 2, "_ng_rollout_index": 0}, result) is result
    assert result["ng_trajectory"]["task_id"] == "2"
    assert "ng_trajectory" not in _attach_trajectory_record({"reward": 1})


@pytest.mark.parametrize(
    "options",
    [
        {"num_repeats": 0},
        {"num_repeats": {"a": 0}},
        {"num_samples_in_parallel": 0},
        {"limit": -1},
        {"num_repeats": "many"},
    ],
    ids=repr,
)
def test_impossible_counts_are_refused(tmp_path, options):
    """They would run nothing and look like success."""
    with pytest.raises(ValidationError):
        config_of(tmp_path, **options)


def test_settings_have_the_contracts_defaults(tmp_path):
    """Existing configurations rely on them."""
    config = config_of(tmp_path, num_repeats=None)

    assert config.num_repeats == 1
    assert config.materialized_jsonl_fpath == tmp_path / "out" / "x_materialized_inputs.jsonl"
    assert config.upload_rollouts
    with pytest.raises(ValidationError, match="split"):
        E2ERolloutCollectionConfig(output_jsonl_fpath="x", split="test")


async def test_half_a_character_of_a_model_survives_storing_and_resume(world, tmp_path, monkeypatch):
    """A model that stops inside an emoji must not end its rollout, nor make the run unreadable."""
    half = {"arguments": '{"a": "\\ud83d"}', "note": "\ud83d", "big": 10**400, "reward": 1.0, "response": MODEL_OUTPUT}
    monkeypatch.setitem(rollout_world.ANSWERS, "half", half)
    rows = row(1, do="half"), row(2, do="half")

    await world.helper().run_from_config(config_of(tmp_path, *rows))
    resumed = config_of(tmp_path, resume_from_cache=True)
    await world.helper().run_from_config(resumed)

    assert [(item["arguments"], item["note"]) for item in read_rows(tmp_path / "out" / "x.jsonl")] == [
        ('{"a": "\\ud83d"}', "\ufffd")
    ] * 2
    assert len(world.sent_rows) == 2
