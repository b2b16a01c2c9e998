"""Which stored responses are verified, beside which inputs, by which server."""

import json

import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollout_reverification import StoredRollouts
from nemo_gym.rollouts.scoring_rules import find_verifiers


def row(task, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "solver"}, **fields}


@pytest.fixture
def files(tmp_path):
    def write(rollouts, inputs, failures=()):
        for name, rows in (("r.jsonl", rollouts), ("i.jsonl", inputs), ("r_failures.jsonl", failures)):
            (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in rows))
        return tmp_path / "r.jsonl", tmp_path / "i.jsonl"

    return write


def test_each_response_meets_its_own_input(files):
    """Rollouts are stored as they finish, inputs as they were planned."""
    stored = StoredRollouts(*files([row(1, response={"id": "x"}), row(0)], [row(0, q="a"), row(1, q="b")]))

    jobs = [job.row for job in stored.jobs()]

    assert jobs == [row(1, q="b", response={"id": "x"}), row(0, q="a", response=None)]
    assert stored.agents == {"solver": 2}


def test_a_rollout_without_its_input_is_refused(files):
    """It is of another run; its verdict would be about another question."""
    with pytest.raises(ConfigError, match="2 rollouts belong to no input row: 5:0, 7:0"):
        StoredRollouts(*files([row(0), row(7), row(5)], [row(0)]))


@pytest.mark.parametrize(
    ("rollouts", "reason"),
    [([row(0), row(0)], "occurs twice"), ([{"reward": 1}], "has no rollout key"), ([], "no rollouts to verify")],
)
def test_rollouts_that_cannot_be_told_apart_are_refused(files, rollouts, reason):
    """Every verdict belongs to one rollout."""
    with pytest.raises(ConfigError, match=reason):
        StoredRollouts(*files(rollouts, [row(0)]))


def test_a_file_that_is_not_there_is_named(tmp_path):
    """Both, if both are missing."""
    with pytest.raises(ConfigPathNotFoundError, match=r"i\.jsonl, .*r\.jsonl"):
        StoredRollouts(tmp_path / "r.jsonl", tmp_path / "i.jsonl")


def test_of_failures_only_judgements_can_be_made_up_for(files):
    """A rollout that was never played has no response to verify."""
    failures = [row(1, _ng_failure_class="timeout"), row(2, _ng_failure_class="judge_failed"), row(0, x=1)]
    stored = StoredRollouts(*files([row(0)], [row(0), row(1), row(2)], failures), judge_failed_only=True)

    assert [job.key.task for job in stored.jobs()] == [2]
    assert [scored.job.key.task for scored in stored.scored_rollouts()] == [0]


def agent(server="grader"):
    return {"responses_api_agents": {"x": {"resources_server": {"type": "resources_servers", "name": server}}}}


GRADER = {"resources_servers": {"grader": {}}}


def test_the_agents_block_names_the_verifier():
    """Several environments may be in one file."""
    config = {"a": agent("one"), "b": agent("two"), "one": GRADER, "two": GRADER, "unused": GRADER}

    assert find_verifiers(config, ["a", "b"]) == {"a": "one", "b": "two"}


def test_without_agents_the_only_server_verifies_everything():
    """Enough for a verifier under development."""
    assert find_verifiers({"grader": GRADER, "other": 3}, ["a", None]) == {"a": "grader", None: "grader"}


@pytest.mark.parametrize(
    ("config", "agents", "reason"),
    [
        ({}, ["a"], "it has: none"),
        ({"one": GRADER, "two": GRADER}, ["a"], "it has: one, two"),
        ({"a": agent(), "grader": GRADER}, ["b"], "'b' is not in the configuration"),
        ({"a": agent("nobody"), "grader": GRADER}, ["a"], "'a' has no resources server"),
        ({"a": agent(), "grader": GRADER}, [None], "some rollouts name no agent"),
    ],
)
def test_where_there_is_no_telling_who_verifies_it_is_refused(config, agents, reason):
    """Guessing would give wrong verdicts with a straight face."""
    with pytest.raises(ConfigError, match=reason):
        find_verifiers(config, agents)
