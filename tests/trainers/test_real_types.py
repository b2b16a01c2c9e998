"""The adapters with the real packages of the trainers."""

from typing import Any

import pytest

from nemo_gym.training import Rollout, rollout_of
from nemo_gym.training.adapters import art, tinker, verl
from tests.training.test_samples import TOOL_RESULT, call, record


def rollout(number: int, reward: float, **more: Any) -> Rollout:
    """Return a rollout of two turns: tokens 1 2 | 3 | 4 | 5 6, of which 3, 5 and 6 are generated."""
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "7"}]}
    tokens = call([1, 2, 3, 4], [5, 6], [-0.2, -0.3], finish_reason="stop")
    token_fields = {name: value for name, value in tokens.items() if name.startswith(("prompt_", "generation_"))}
    items = [call([1, 2], [3], [-0.1], weight_version=7), TOOL_RESULT, {**answer, **token_fields}]
    params = {"input": [{"type": "message", "role": "user", "content": "Ask, then answer."}]}
    fields = {"responses_create_params": params, "_ng_rollout_index": number, "reward": reward, **more}
    return rollout_of(record(*items, **fields))


@pytest.fixture
def rollouts() -> list[Rollout]:
    """Two trainable rollouts of a group, and one that failed."""
    return [rollout(0, 1.0), rollout(2, 1.0, _ng_failure_class="server_died"), rollout(1, 0.0)]


def test_verl_batch(rollouts: list[Rollout]) -> None:
    """verl computes losses from these tensors; a shifted mask would train on tool results."""
    pytest.importorskip("verl")
    batch = verl.to_data_proto(rollouts, pad_token_id=0, prompt_length=3, response_length=5)

    assert batch.batch["input_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 0]] * 2
    assert batch.batch["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 1, 1, 0]] * 2
    assert batch.batch["position_ids"][0].tolist()[1:7] == [0, 1, 2, 3, 4, 5]
    assert batch.batch["response_mask"].tolist() == [[1, 0, 1, 1, 0]] * 2
    assert batch.batch["rm_scores"].tolist() == [[0.0, 0.0, 0.0, 1.0, 0.0], [0.0] * 5]
    assert batch.batch["rollout_log_probs"][0].tolist() == pytest.approx([-0.1, 0.0, -0.2, -0.3, 0.0])
    assert list(batch.non_tensor_batch["uid"]) == ["3", "3"]


def test_tinker_training_data(rollouts: list[Rollout]) -> None:
    """Tinker's own function must make one datum with our mask and log-probs from a trajectory."""
    pytest.importorskip("tinker_cookbook")
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    (group,) = tinker.to_trajectory_groups(rollouts)

    assert group.get_total_rewards() == [1.0, 0.0]
    (datum,) = trajectory_to_data(group.trajectories_G[0], 0.5)
    assert datum.loss_fn_inputs["mask"].data == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert datum.loss_fn_inputs["logprobs"].data == pytest.approx([0.0, -0.1, 0.0, -0.2, -0.3])
    assert datum.loss_fn_inputs["target_tokens"].data == [2, 3, 4, 5, 6]


def test_art_trajectories(rollouts: list[Rollout]) -> None:
    """ART reads the token ids from the names in the log-probs of each choice."""
    pytest.importorskip("art")
    (group,) = art.to_trajectory_groups(rollouts)

    assert [trajectory.reward for trajectory in group] == [1.0, 0.0]
    assert len(group.exceptions) == 1
    _, ask, result, answer = group.trajectories[0].messages_and_choices
    assert [token.token for token in ask.logprobs.content] == ["token_id:3"]
    assert result["role"] == "tool"
    assert [(token.token, token.logprob) for token in answer.logprobs.content] == [
        ("token_id:5", -0.2),
        ("token_id:6", -0.3),
    ]
    assert group.trajectories[0].initial_policy_version == 7
