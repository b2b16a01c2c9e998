"""Rollouts with what was observed on the way: captured model calls and the trajectory, joined to the result."""

import asyncio
from typing import Any

from nemo_gym.capture.store import CaptureStore, merge_model_call_capture_into_record
from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.rollouts.collect import Send
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.trajectory import attach_trajectory_record


def observed(send: Send, captures: CaptureStore) -> Send:
    """`send`, with the captures of the rollout on its result. The files are read and cleared in a thread."""

    async def sent(job: Job) -> Any:
        rollout_id = maybe_rollout_id_from_run_body(job.row) or str(job.key)
        await asyncio.to_thread(captures.clear, [rollout_id])  # of an attempt that was cut short
        result = await send(job)
        if isinstance(result, dict):
            await asyncio.to_thread(_join, job, result, captures, rollout_id)
        return result

    return sent


def _join(job: Job, result: Row, captures: CaptureStore, rollout_id: str) -> None:
    merge_model_call_capture_into_record(result, captures, rollout_id)
    attach_trajectory_record(job.row, result)
