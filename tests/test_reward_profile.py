"""The profile's files."""

import json

import pytest

from nemo_gym import reward_profile
from nemo_gym.reward_profile import RewardProfileConfig, RewardProfiler


def test_both_files_lie_next_to_the_rollouts(tmp_path):
    """People look for them there, and the next command reads them."""
    rollouts = tmp_path / "run.jsonl"
    inputs = [{"_ng_task_index": 0, "_ng_rollout_index": 0, "question": "2+2"}]
    results = [{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "agent_ref": {"name": "solver"}}]
    profiler = RewardProfiler()

    profile_path, agents_path = profiler.write_to_disk(*profiler.profile_from_data(inputs, results), rollouts)

    assert (profile_path.name, agents_path.name) == ("run_reward_profiling.jsonl", "run_agent_metrics.json")
    (line,) = profile_path.read_text().splitlines()
    assert json.loads(line)["sample"] == {"question": "2+2"}
    assert json.loads(agents_path.read_text()) == [
        {
            **{f"{kind}/reward": 1.0 for kind in ("mean", "max", "min", "median")},
            "std/reward": 0.0,
            "agent_ref": {"name": "solver"},
        }
    ]


def test_an_interrupted_write_leaves_the_earlier_profile(tmp_path):
    """A profile is whole or it is the old one."""
    rollouts = tmp_path / "run.jsonl"
    profiler = RewardProfiler()
    profiler.write_to_disk([{"first": 1}], [], rollouts)

    def entries():
        yield {"second": 2}
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        profiler.write_to_disk(entries(), [], rollouts)

    assert (tmp_path / "run_reward_profiling.jsonl").read_text() == '{"first":1}\n'
    assert len(list(tmp_path.iterdir())) == 2


def test_the_command_takes_what_it_needs_from_the_whole_configuration():
    """Keys of other commands are not its business."""
    config = RewardProfileConfig.model_validate(
        {"materialized_inputs_jsonl_fpath": "in.jsonl", "rollouts_jsonl_fpath": "out.jsonl", "head_server": {}}
    )

    assert config.allow_partial_rollouts is False


def test_every_public_name_is_there():
    """Servers import these by name."""
    assert all(hasattr(reward_profile, name) for name in reward_profile.__all__)
