"""Runs that are continued, started over, limited and stopped, against agents in this process."""

import asyncio
import json
from collections import Counter

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.journal import StoreError
from nemo_gym.rollouts.collect import InFlight
from nemo_gym.rollouts.resume import ResumeRefused
from nemo_gym.rollouts.store import RolloutStore
from tests.rollout_world import World, config_of, rollout_ids, row, stored_rows

pytestmark = pytest.mark.asyncio


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


async def run(world, tmp_path, *rows, **options):
    """Collect and return the plan and the tally."""
    plans = []
    helper = world.helper(on_plan=plans.append)
    tally = await helper.collect_from_config(config_of(tmp_path, *rows, disable_aggregation=True, **options))
    return plans[0], tally


async def test_a_new_run_reports_its_plan_and_stores_its_identity(world, tmp_path):
    """The identity is what a resume is compared with."""
    planned, tally = await run(world, tmp_path, row(0), row(1), num_repeats=2, responses_create_params={"top_p": 0.5})

    assert (planned.total, planned.to_run, planned.finished, planned.resumed) == (4, 4, 0, False)
    assert tally.scored == 4
    written = json.loads((tmp_path / "out/x_run.json").read_text())
    assert written["rows"].startswith("blake2b:")
    assert written["num_repeats"] == 2
    assert written["plan"]["responses_create_params"] == {"top_p": 0.5}
    assert {"run_id", "started_at", "servers", "code", "limits"} <= set(written)
    assert not (tmp_path / "out/x.lock").exists()


async def test_an_earlier_run_is_kept_aside_and_named(world, tmp_path):
    """A forgotten --resume must not cost a night's results."""
    await run(world, tmp_path, row(0), row(1))

    planned, _ = await run(world, tmp_path, row(7))

    assert planned.kept == tmp_path / "out/x_previous"
    assert "were moved to" in planned.notes[0]
    assert rollout_ids(stored_rows(tmp_path, "x_previous/x.jsonl")) == [(0, 0), (1, 0)]
    planned, _ = await run(world, tmp_path, row(8), overwrite=True)
    assert planned.kept is None
    assert len(stored_rows(tmp_path, "x_previous/x.jsonl")) == 2, "overwriting does not touch what was kept before"


async def test_a_resumed_run_reports_what_is_left(world, tmp_path):
    """The user sees at once whether the resume matched."""
    world.agents["a"].broken = {1, 2}
    await run(world, tmp_path, row(0), row(1), row(2), row(3, do="terminal"))
    world.agents["a"].broken = {2}

    planned, tally = await run(world, tmp_path, resume_from_cache=True)

    assert (planned.total, planned.finished, planned.given_up, planned.to_run) == (4, 1, 1, 2)
    assert planned.resumed
    assert (tally.scored, tally.retried, dict(tally.failed)) == (1, 1, {"agent_error": 1})
    planned, _ = await run(world, tmp_path, resume_from_cache=True)
    assert (planned.finished, planned.given_up, planned.to_run) == (2, 2, 0)
    planned, _ = await run(world, tmp_path, resume_from_cache=True, max_rollout_attempts=5)
    assert planned.to_run == 1, "a higher cap tries the tired ones again"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"responses_create_params": {"temperature": 1.0}}, "responses_create_params"),
        ({"limit": 1}, "input rows"),
        ({"agent_name": "b"}, "agent_name"),
        ({"num_repeats": 1}, "num_repeats: 2 -> 1"),
        ({"num_repeats_add_seed": True}, "num_repeats_add_seed"),
    ],
    ids=repr,
)
async def test_another_run_is_refused_with_what_differs_and_how_to_force_it(world, tmp_path, changed, named):
    """Half a run at one temperature and half at another is the result of neither."""
    await run(world, tmp_path, row(0), row(1), num_repeats=2)
    before = (tmp_path / "out/x.jsonl").read_bytes()

    with pytest.raises(ResumeRefused, match="a different one; differences") as caught:
        await run(world, tmp_path, resume_from_cache=True, **{"num_repeats": 2, **changed})

    assert named in str(caught.value)
    assert "+force_resume=true" in str(caught.value)
    assert isinstance(caught.value, ConfigError)
    assert (tmp_path / "out/x.jsonl").read_bytes() == before
    assert len(world.sent_rows) == 4


async def test_changed_rows_are_refused_and_rows_that_were_only_written_again_are_not(world, tmp_path):
    """Copying a file changes its time, not its rows."""
    await run(world, tmp_path, row(0), row(1))
    content = (tmp_path / "in.jsonl").read_bytes()
    (tmp_path / "in.jsonl").unlink()
    (tmp_path / "in.jsonl").write_bytes(content)

    await run(world, tmp_path, resume_from_cache=True)

    with pytest.raises(ResumeRefused, match="input rows"):
        await run(world, tmp_path, row(0), row(2), resume_from_cache=True)


async def test_force_continues_the_planned_run_and_notes_it(world, tmp_path):
    """A forced result must be recognizable later."""
    world.agents["a"].broken = {1}
    await run(world, tmp_path, row(0), row(1), responses_create_params={"temperature": 0.5})
    world.agents["a"].broken = set()

    planned, tally = await run(
        world, tmp_path, resume_from_cache=True, force_resume=True, responses_create_params={"temperature": 0.9}
    )

    assert tally.scored == 1
    assert "by force" in planned.notes[0]
    assert {item["responses_create_params"]["temperature"] for item in world.sent_rows} == {0.5}
    written = json.loads((tmp_path / "out/x_run.json").read_text())
    assert "temperature" in written["resumed"][0]["note"]
    assert written["plan"]["responses_create_params"] == {"temperature": 0.5}, "what is true of the rows"


async def test_more_repeats_and_another_concurrency_are_accepted_and_noted(world, tmp_path):
    """Neither changes the rollouts that are stored."""
    await run(world, tmp_path, row(0), row(1), num_repeats=2, num_samples_in_parallel=1)
    world.agents["a"].seen.clear()

    planned, tally = await run(world, tmp_path, resume_from_cache=True, num_repeats=3, num_samples_in_parallel=7)

    assert (planned.total, planned.finished, planned.to_run) == (6, 4, 2)
    assert planned.notes == ["num_repeats: 2 -> 3; 2 rollouts added"]
    assert sorted(rollout_ids(world.sent_rows)) == [(0, 2), (1, 2)]
    assert tally.scored == 2
    assert Counter(rollout_ids(stored_rows(tmp_path))) == {(task, n): 1 for task in range(2) for n in range(3)}
    planned, _ = await run(world, tmp_path, resume_from_cache=True, num_repeats=3)
    assert (planned.total, planned.to_run, planned.notes) == (6, 0, [])


async def test_an_output_from_before_identities_is_resumed_with_a_word(world, tmp_path):
    """Outputs of earlier versions, and of NeMo Gym, have no such file."""
    await run(world, tmp_path, row(0))
    (tmp_path / "out/x_run.json").unlink()

    planned, _ = await run(world, tmp_path, resume_from_cache=True)

    assert "it was not checked" in planned.notes[0]
    assert planned.to_run == 0
    planned, _ = await run(world, tmp_path, resume_from_cache=True)
    assert planned.notes == [], "from now on it can be checked"
    with pytest.raises(ResumeRefused):
        await run(world, tmp_path, row(5), resume_from_cache=True)


async def test_two_collectors_on_one_output_the_second_is_refused(world, tmp_path):
    """They would mix their results."""
    with RolloutStore(tmp_path / "out/x.jsonl"), pytest.raises(StoreError, match="is collecting into this output"):
        await run(world, tmp_path, row(0))

    assert world.sent_rows == []


async def test_the_first_failure_ends_the_run_with_fail_fast(world, tmp_path):
    """It saves tokens while an environment is developed."""
    rows = [row(0, do="crash"), *(row(n) for n in range(1, 9))]

    planned, tally = await run(world, tmp_path, *rows, fail_fast=True, num_samples_in_parallel=1)

    assert tally.failed == {"agent_error": 1}
    assert tally.stop_reason == "a rollout failed (max_failures 1)"
    assert (tally.not_run, planned.total) == (8, 9)
    planned, tally = await run(world, tmp_path, resume_from_cache=True, num_samples_in_parallel=1, max_failures=2)
    assert (tally.scored, tally.stop_reason) == (8, None)


async def test_spent_tokens_stop_the_run_and_a_higher_limit_continues_it(world, tmp_path):
    """Each rollout counts seven tokens; those in flight when the limit is reached are finished and kept."""
    rows = [row(n) for n in range(10)]

    _, tally = await run(world, tmp_path, *rows, max_total_tokens=15, num_samples_in_parallel=2)

    assert 3 <= tally.scored <= 4
    assert "tokens are spent" in tally.stop_reason
    assert tally.scored + tally.not_run == 10
    _, again = await run(world, tmp_path, resume_from_cache=True, max_total_tokens=15)
    assert (again.scored, again.not_run) == (0, tally.not_run), "what was spent before counts"
    planned, rest = await run(world, tmp_path, resume_from_cache=True, max_total_tokens=1000)
    assert rest.scored == tally.not_run
    assert "max_total_tokens 15 -> 1000" in planned.notes[0]


async def test_a_rollout_that_uses_more_tokens_than_one_may_is_a_limit(world, tmp_path):
    """It is counted apart from failures."""
    _, tally = await run(world, tmp_path, row(0), max_tokens_per_rollout=6)

    assert tally.limits == {"tokens": 1}
    (line,) = stored_rows(tmp_path, "x_failures.jsonl")
    assert (line["_ng_failure_class"], line["_ng_failure"]) == ("limit", {"which": "tokens", "most": 6})
    assert "reward" not in line


async def test_what_a_limit_ended_is_run_again_when_the_limit_is_higher(world, tmp_path):
    """A user who raises a limit means the rollouts that reached it."""
    await run(world, tmp_path, row(0), row(1, do="terminal"), max_tokens_per_rollout=6)

    for limit in (6, 5):
        planned, _ = await run(world, tmp_path, resume_from_cache=True, max_tokens_per_rollout=limit)
        assert (planned.given_up, planned.to_run) == (2, 0)
    planned, tally = await run(world, tmp_path, resume_from_cache=True, max_tokens_per_rollout=7)

    assert (planned.given_up, planned.to_run) == (1, 1)
    assert tally.scored == 1
    planned, _ = await run(world, tmp_path, resume_from_cache=True, max_tokens_per_rollout=None)
    assert (planned.finished, planned.given_up, planned.to_run) == (1, 1, 0)


async def test_a_rollout_that_takes_too_long_is_a_timeout_of_the_rollout(world, tmp_path):
    """One agent that never answers must not hold up the end of the run."""
    _, tally = await run(world, tmp_path, row(0), row(1, do="hang"), rollout_timeout_seconds=1.0)

    assert (tally.scored, dict(tally.failed)) == (1, {"timeout": 1})
    (line,) = stored_rows(tmp_path, "x_failures.jsonl")
    assert line["_ng_failure"]["which"] == "rollout"
    assert "1 s" in line["_ng_failure"]["message"]
    assert line["_ng_failure"]["seconds"] >= 0.98


@pytest.mark.parametrize(
    ("do", "limit", "which"),
    [
        ("hang in a tool", "tool_call_timeout_seconds", "tool_call"),
        ("hang in verify", "verify_timeout_seconds", "verify"),
        ("hang in a tool", "request_timeout_seconds", "tool_call"),
        ("hang in verify", "request_timeout_seconds", "verify"),
    ],
)
async def test_a_call_that_takes_too_long_is_a_timeout_of_that_phase(world, tmp_path, do, limit, which):
    """The user must know which timeout to raise."""
    options = {limit: 0.2, "max_rollout_attempts": 1}

    _, tally = await run(world, tmp_path, row(0, do=do), **options)

    assert tally.failed == {"timeout": 1}
    detail = stored_rows(tmp_path, "x_failures.jsonl")[-1]["_ng_failure"]
    assert (detail["which"], detail["whom"]) == (which, "r")
    assert f"raise {limit}" in detail["message"]


async def test_time_spent_waiting_for_a_turn_is_not_the_rollouts(world, tmp_path):
    """Many rollouts one after another take far longer than one may; each of them is in time."""
    rows = [row(n, do="slow") for n in range(26)]

    _, tally = await run(world, tmp_path, *rows, rollout_timeout_seconds=1.5, num_samples_in_parallel=1)

    assert tally.scored == 26


async def test_rollouts_in_flight_can_be_listed(world, tmp_path):
    """A hanging run must show what it waits for."""
    flights = InFlight()
    helper = world.helper(in_flight=flights)
    config = config_of(tmp_path, row(0, do="hang"), disable_aggregation=True)

    running = asyncio.create_task(helper.collect_from_config(config))
    await asyncio.wait_for(world.agents["a"].hangs.wait(), 20)
    (flight,) = flights.oldest(3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (str(flight.key), flight.agent) == ("0-0", "a")
    assert len(flights) == 0
    assert not (tmp_path / "out/x.lock").exists(), "an interrupted run lets go of its output"


async def test_limits_can_be_switched_off(world, tmp_path):
    """Long-running environments need it."""
    off = dict.fromkeys(
        [
            "rollout_timeout_seconds",
            "model_call_timeout_seconds",
            "tool_call_timeout_seconds",
            "verify_timeout_seconds",
            "request_timeout_seconds",
            "max_steps_per_rollout",
            "max_tokens_per_rollout",
            "max_total_tokens",
            "max_total_cost",
        ]
    )

    _, tally = await run(world, tmp_path, row(0), **off)

    assert tally.scored == 1
    assert json.loads((tmp_path / "out/x_run.json").read_text())["limits"] == off


async def test_results_do_not_replace_the_rows_they_come_from(world, tmp_path):
    """`-o` with the name of the input is a slip that must not cost the dataset."""
    config = config_of(tmp_path, row(0))
    config.output_jsonl_fpath = config.input_jsonl_fpath
    before = (tmp_path / "in.jsonl").read_bytes()

    with pytest.raises(ConfigError, match="the results would replace the input rows"):
        await world.helper().collect_from_config(config)

    assert (tmp_path / "in.jsonl").read_bytes() == before


async def test_what_would_be_refused_is_known_before_any_server_is_started(world, tmp_path):
    """Half a minute of starting servers only to read that the parameters differ is half a minute too much."""
    servers = world.client.global_config_dict
    await run(world, tmp_path, row(0))
    helper = world.helper()

    helper.check(config_of(tmp_path, resume_from_cache=True), servers)
    helper.check(config_of(tmp_path), servers)
    with pytest.raises(ResumeRefused, match="num_repeats_add_seed"):
        helper.check(config_of(tmp_path, resume_from_cache=True, num_repeats_add_seed=True), servers)
    with RolloutStore(tmp_path / "out/x.jsonl"), pytest.raises(StoreError, match="is collecting"):
        helper.check(config_of(tmp_path), servers)
    (tmp_path / "in.jsonl").unlink()
    with pytest.raises(ConfigError, match="input file not found"):
        helper.check(config_of(tmp_path), servers)

    assert len(stored_rows(tmp_path)) == 1
    assert len(world.sent_rows) == 1


async def test_skills_and_prompts_count_by_their_content_and_not_by_their_place(world, tmp_path):
    """The same run on another machine has its files elsewhere."""
    for name in ("here", "there"):
        skill = tmp_path / name / "skills" / "one"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: one\n---\nbody\n")
        (tmp_path / name / "prompt.yaml").write_text("user: 'Q: {q}'\n")

    def at(name):
        folder = tmp_path / name
        return {"skills": {"path": str(folder / "skills")}, "prompt_config": str(folder / "prompt.yaml")}

    config = {"n": 1, "q": "why?", "agent_ref": {"name": "a"}}
    await run(world, tmp_path, config, **at("here"))
    planned, _ = await run(world, tmp_path, resume_from_cache=True, **at("there"))
    assert planned.notes == []

    (tmp_path / "there" / "prompt.yaml").write_text("user: 'Question: {q}'\n")
    with pytest.raises(ResumeRefused, match="prompt"):
        await run(world, tmp_path, resume_from_cache=True, **at("there"))
