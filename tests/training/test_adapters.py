"""Rollouts in the form that each trainer reads; real packages are used in `tests/trainers`."""

from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.training import Rollout, group_advantages, rollout_of
from nemo_gym.training.adapters import areal, atropos, nemo_rl, openrlhf, prime_rl, rllm, skyrl, slime
from tests.training.test_samples import TOOL_RESULT, call, record


def rollout(number: int = 0, reward: float = 1.0, **more: Any) -> Rollout:
    """Return a rollout of two turns: tokens 1 2 | 3 | 4 | 5 6, of which 3, 5 and 6 are generated."""
    items = [
        call([1, 2], [3], [-0.1], weight_version=7),
        TOOL_RESULT,
        call([1, 2, 3, 4], [5, 6], [-0.2, -0.3], weight_version=8, finish_reason="length"),
    ]
    return rollout_of(record(*items, _ng_rollout_index=number, reward=reward, **more))


@pytest.fixture
def rollouts() -> list[Rollout]:
    """Two trainable rollouts of a group, and one that failed."""
    failed = rollout(2, _ng_failure_class="server_died")
    return [rollout(0, 1.0), failed, rollout(1, 0.0)]


def test_advantages_ignore_failures(rollouts: list[Rollout]) -> None:
    """A failure in the mean would punish the others of its group."""
    assert group_advantages(rollouts) == {"3-0": 1.0, "3-1": -1.0}
    assert group_advantages(rollouts, normalize=False) == {"3-0": 0.5, "3-1": -0.5}
    assert group_advantages([rollout(0), rollout(1)]) == {"3-0": 0.0, "3-1": 0.0}


def test_skyrl(rollouts: list[Rollout]) -> None:
    """SkyRL splits prompt and response, and aligns masks and log-probs with the response."""
    output = skyrl.to_generator_output(rollouts)

    assert output["prompt_token_ids"] == [[1, 2]] * 2
    assert output["response_ids"] == [[3, 4, 5, 6]] * 2
    assert output["loss_masks"] == [[1, 0, 1, 1]] * 2
    assert output["rollout_logprobs"] == [[-0.1, 0.0, -0.2, -0.3]] * 2
    assert output["rewards"] == [1.0, 0.0]
    assert output["stop_reasons"] == ["length"] * 2
    assert output["is_last_step"] == [True, True]
    assert output["rollout_metrics"] == {"rollouts": 3, "rollouts_left_out": 1}


def test_slime_gives_removed_samples_the_mean_of_their_group(rollouts: list[Rollout]) -> None:
    """slime makes a tensor of all rewards, so none may be None, and a failure must not move the baseline."""
    (group,) = slime.to_samples(rollouts)

    assert [sample["reward"] for sample in group] == [1.0, 0.5, 0.0]
    assert [sample["remove_sample"] for sample in group] == [False, True, False]
    assert [sample["status"] for sample in group] == ["truncated", "failed", "truncated"]
    assert group[0]["tokens"] == [1, 2, 3, 4, 5, 6]
    assert group[0]["response_length"] == 4
    assert group[0]["weight_versions"] == ["7", "8"]
    assert len(group[0]["loss_mask"]) == len(group[0]["rollout_log_probs"]) == 4


def test_slime_has_a_number_for_a_group_without_trainable_rollouts() -> None:
    """One group that failed as a whole would otherwise stop the training step of all groups."""
    (group,) = slime.to_samples([rollout(0, _ng_failure_class="server_died")])

    assert [(sample["reward"], sample["remove_sample"]) for sample in group] == [(0.0, True)]


def test_openrlhf_marks_ranges(rollouts: list[Rollout]) -> None:
    """OpenRLHF trains on ranges instead of a mask."""
    first, second = openrlhf.to_agent_outputs(rollouts)

    assert first["action_ranges"] == [(2, 3), (4, 6)]
    assert first["observation_tokens"] == [1, 2, 3, 4, 5, 6]
    assert (first["reward"], second["reward"]) == (1.0, 0.0)
    assert first["truncated"] is True


def test_areal_has_a_version_for_each_token(rollouts: list[Rollout]) -> None:
    """AReaL's decoupled loss needs the version of every generated token."""
    first, _ = areal.to_trajectories(rollouts, tensor=list)

    assert first["versions"] == [[-1, -1, 7, -1, 8, 8]]
    assert first["rewards"] == [1.0]


def test_prime_rl_brings_advantages(rollouts: list[Rollout]) -> None:
    """prime-rl's trainer expects the advantage with the sample."""
    first, second = prime_rl.to_training_samples(rollouts, environment="sums", temperature=0.7)

    assert first["advantages"][0]["values"] == [0.0, 0.0, 0.5, 0.0, 0.5, 0.5]
    assert second["advantages"][0]["values"][2] == -0.5
    assert first["temperatures"] == [0.7] * 6
    assert first["mask"] == [False, False, True, False, True, True]


def test_atropos_masks_with_token_ids(rollouts: list[Rollout]) -> None:
    """Atropos' mask has the token id where there is a loss and -100 elsewhere."""
    (group,) = atropos.to_scored_groups(rollouts)

    assert group["masks"][0] == [-100, -100, 3, -100, 5, 6]
    assert group["inference_logprobs"][0] == [1.0, 1.0, -0.1, 1.0, -0.2, -0.3]
    assert group["scores"] == [1.0, 0.0]


def test_rllm_has_a_step_for_each_call(rollouts: list[Rollout]) -> None:
    """rLLM trains on steps with their complete prompts."""
    first, _ = rllm.to_episodes(rollouts)

    (trajectory,) = first["trajectories"]
    assert [step["prompt_ids"] for step in trajectory["steps"]] == [[1, 2], [1, 2, 3, 4]]
    assert [step["response_ids"] for step in trajectory["steps"]] == [[3], [5, 6]]
    assert [step["weight_version"] for step in trajectory["steps"]] == [7, 8]


def test_nemo_rl_alternates_roles(rollouts: list[Rollout]) -> None:
    """NeMo RL concatenates the log, so its tokens must be those of the sample in order."""
    first, _ = nemo_rl.to_results(rollouts, tensor=list)

    log = first["message_log"]
    assert [message["role"] for message in log] == ["user", "assistant", "user", "assistant"]
    assert [token for message in log for token in message["token_ids"]] == [1, 2, 3, 4, 5, 6]
    assert log[3]["generation_logprobs"] == [-0.2, -0.3]
    assert first["input_message_log"] == log[:1]
    assert first["full_result"]["reward"] == 1.0


def test_nemo_rl_has_no_empty_part_between_two_calls() -> None:
    """`torch.tensor([])` has the type float, and makes the ids of the whole log floats when they are joined."""
    continued = rollout_of(record(call([1], [2], [-0.1]), TOOL_RESULT, call([1, 2], [3], [-0.2]), TOOL_RESULT))
    (result,) = nemo_rl.to_results([continued], tensor=list)

    parts = [(message["role"], message["token_ids"]) for message in result["message_log"]]
    assert parts == [("user", [1]), ("assistant", [2]), ("assistant", [3])]


def test_rllm_has_no_trajectory_without_steps() -> None:
    """It has nothing to train on, and its reward would still count in the group."""
    broken = rollout_of(record(call([1], [2], constrained=True), TOOL_RESULT, call([8, 9], [4]), TOOL_RESULT))
    assert len(broken.samples) == 2
    (episode,) = rllm.to_episodes([broken])

    assert [[step["response_ids"] for step in kept["steps"]] for kept in episode["trajectories"]] == [[[4]]]


CONSTRAINED = rollout_of(
    record(call([1], [2], [-0.1], constrained=True), TOOL_RESULT, call([1, 2, 3], [4], [-0.2]), TOOL_RESULT)
)


@pytest.mark.parametrize(
    "trained_tokens",
    [
        lambda pair: [
            token
            for output in openrlhf.to_agent_outputs(pair)
            for start, end in output["action_ranges"]
            for token in output["observation_tokens"][start:end]
        ],
        lambda pair: [
            token
            for result in nemo_rl.to_results(pair, tensor=list)
            for message in result["message_log"]
            if message["role"] == "assistant"
            for token in message["token_ids"]
        ],
        lambda pair: [
            token
            for episode in rllm.to_episodes(pair)
            for trajectory in episode["trajectories"]
            for step in trajectory["steps"]
            for token in step["response_ids"]
        ],
        lambda pair: [mask for group in atropos.to_scored_groups(pair) for mask in group["masks"][0] if mask != -100],
    ],
)
def test_constrained_tokens_reach_no_trainer(trained_tokens: Callable[[list[Rollout]], list[int]]) -> None:
    """Formats without a mask have no place for tokens that are generated but not trained on."""
    assert trained_tokens([CONSTRAINED]) == [4]
