"""What is sent to be aggregated and how the answers are kept."""

import orjson
import pytest

from nemo_gym.errors import AgentFailed
from nemo_gym.rollouts.aggregate import aggregate, by_agent, stripped, write_metrics
from nemo_gym.rollouts.jsonl import StoreError

BIG = {
    "responses_create_params": {"input": "…"},
    "ng_agent_observations": {},
    "ng_model_call_capture": {},
    "ng_trajectory": {},
    "response": {"output": [1], "usage": {"total_tokens": 3}},
    "reward": 1.0,
    "agent_ref": {"name": "a"},
}


def test_conversations_are_not_sent_but_usage_is():
    assert stripped(BIG) == {"reward": 1.0, "agent_ref": {"name": "a"}, "response": {"usage": {"total_tokens": 3}}}
    assert stripped({"reward": 1, "response": {"usage": None}}) == {"reward": 1}


def test_records_are_grouped_by_agent():
    groups = by_agent([BIG, {"reward": 0, "agent_ref": {"name": "b"}}, {"reward": 2, "agent_ref": {"name": "a"}}])

    assert {name: [record["reward"] for record in group] for name, group in groups.items()} == {"a": [1, 2], "b": [0]}


@pytest.mark.asyncio
async def test_one_agent_without_metrics_does_not_cost_the_others(tmp_path):
    async def ask(agent, records):
        if agent == "b":
            raise AgentFailed("down", where="b")
        return {"agent_metrics": {"mean/reward": 1.0}, "key_metrics": {"mean/reward": 1.0}, "other": 1}

    entries, failed = await aggregate([BIG, {"agent_ref": {"name": "b"}}], ask)
    write_metrics(tmp_path / "deep" / "m.json", entries)

    assert orjson.loads((tmp_path / "deep" / "m.json").read_bytes()) == [
        {
            "agent_ref": {"name": "a"},
            "agent_metrics": {"mean/reward": 1.0},
            "key_metrics": {"mean/reward": 1.0},
            "group_level_metrics": [],
        }
    ]
    assert list(failed) == ["b"]


def test_metrics_that_cannot_be_written_are_an_error_with_a_place(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"m\.json: cannot write"):
        write_metrics(tmp_path / "file" / "m.json", [])
