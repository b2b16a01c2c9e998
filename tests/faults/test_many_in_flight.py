"""`--concurrency N` means N calls at the endpoint at the same time, also above the default limit on connections."""

import asyncio
from pathlib import Path

from chaos.endpoint import Endpoint, answer_to, head_of, serving
from chaos.evaluation import Evaluation
from nemo_gym.transport.http_sessions import raise_open_files_limit

IN_FLIGHT = 2200
"""More than two cells have by default: 1,024 connections each."""


class PatientEndpoint(Endpoint):
    """Answers no call before `IN_FLIGHT` calls have arrived."""

    def __init__(self) -> None:
        self.arrived = 0
        self._all_arrived = asyncio.Event()

    async def answer(self, request: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        self.arrived += 1
        if self.arrived >= IN_FLIGHT:
            self._all_arrived.set()
        await self._all_arrived.wait()
        body = answer_to(request)
        writer.write(head_of(body) + body)
        return True


def test_as_many_calls_are_in_flight_as_the_flag_says(tmp_path: Path) -> None:
    """The flag reached the collector only: each cell stopped at 1,024 connections, and the rest waited unseen."""
    raise_open_files_limit()
    endpoint = PatientEndpoint()
    with serving(endpoint) as url:
        model = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "x", "openai_model": "patient"}
        job = Evaluation(
            tmp_path / "run",
            model={"responses_api_models": {"openai_model": model}},
            overrides=["+rollout_timeout_seconds=60", "+max_rollout_attempts=1"],
            tasks=IN_FLIGHT // 2,
            repeats=2,
        )
        status, _ = job.run("--concurrency", str(IN_FLIGHT))

    assert (status, len(job.rewards())) == (0, IN_FLIGHT), job.log_tail()
