"""`--concurrency N` means N calls at the endpoint at the same time, also above the default limit on connections."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

from chaos.endpoint import answer_to, content_length, head_of, serving
from chaos.evaluation import Evaluation
from nemo_gym.serve.webserver import raise_open_files_limit

IN_FLIGHT = 2200
"""More than two cells have by default: 1,024 connections each."""


class PatientEndpoint:
    """Answers no call before `IN_FLIGHT` calls have arrived."""

    def __init__(self) -> None:
        self.arrived = 0
        self._all_arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):  # a health check
                    writer.write(head_of(b"{}") + b"{}")
                    continue
                body = answer_to(json.loads(await reader.readexactly(content_length(head))))
                self.arrived += 1
                if self.arrived >= IN_FLIGHT:
                    self._all_arrived.set()
                await self._all_arrived.wait()
                writer.write(head_of(body) + body)
                await writer.drain()
        writer.close()


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
