"""Results with what was observed on the way."""

import pytest

from nemo_gym.capture.record import ModelCallRecord
from nemo_gym.capture.store import CaptureStore
from nemo_gym.rollouts.capture_join import with_captures
from nemo_gym.rollouts.outcome import Job

pytestmark = pytest.mark.asyncio

JOB = Job.of({"_ng_task_index": 3, "_ng_rollout_index": 1, "agent_ref": {"name": "a"}})


def call(name):
    return ModelCallRecord(
        call_index=0,
        model_call_id=name,
        dialect="responses",
        started_at=0,
        completed_at=1,
        latency_ms=1,
        response={"id": "r"},
    )


async def test_a_result_has_the_calls_of_this_attempt_and_of_no_other(tmp_path):
    """Tokens of an abandoned attempt must not enter a training sample."""
    captures = CaptureStore(tmp_path)
    captures.append("3-1", call("of an attempt that was cut short"))

    async def send(job):
        captures.append("3-1", call("new"))
        return {"reward": 1.0}

    result = await with_captures(send, captures)(JOB)

    assert [seen["model_call_id"] for seen in result["ng_model_call_capture"]["calls"]] == ["new"]
    assert result["ng_trajectory"]["rollout_id"] == "3-1"


async def test_an_answer_that_is_no_result_passes_as_it_is(tmp_path):
    """What is wrong with it is said elsewhere."""

    async def send(job):
        return ["no object"]

    assert await with_captures(send, CaptureStore(tmp_path))(JOB) == ["no object"]
