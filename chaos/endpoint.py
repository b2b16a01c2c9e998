"""A model endpoint that answers sums correctly and injects a fault into a share of its calls."""

import asyncio
import json
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LATE_SECONDS = 6.0
STATUSES = (429, 500, 502, 503, 504)
FAULTS = (*(f"status {status}" for status in STATUSES), "reset", "stall", "late", "not json", "wrong shape")


class Endpoint(ABC):
    """A model endpoint that reads calls from its connections; `answer` writes the answers."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            is_usable = True
            while is_usable:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):  # a health check
                    writer.write(head_of(b"{}") + b"{}")
                    continue
                request = json.loads(await reader.readexactly(content_length(head)))
                is_usable = await self.answer(request, writer)
                await writer.drain()
        writer.close()

    @abstractmethod
    async def answer(self, request: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        """Write the answer to a call; return whether the connection stays usable."""


class FaultyEndpoint(Endpoint):
    """Answer calls; a `fault_share` of them, chosen by the seed, gets one of `FAULTS`.

    With `refusal` (status and body), every call after the first `accepted_calls` is refused.
    """

    def __init__(self, seed: int, fault_share: float) -> None:
        self.fault_share = fault_share
        self.accepted_calls = 0
        self.refusal: tuple[int, bytes] | None = None
        self.calls: Counter[str] = Counter()
        self._random = random.Random(seed)

    async def answer(self, request: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        """Write the answer, a refusal or a fault."""
        fault = self._random.choice(FAULTS) if self._random.random() < self.fault_share else "none"
        if self.refusal and self.calls["none"] >= self.accepted_calls:
            self.calls["refused"] += 1
            status, body = self.refusal
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
            return True
        self.calls[fault] += 1
        return await self._write_answer(writer, fault, answer_to(request))

    async def _write_answer(self, writer: asyncio.StreamWriter, fault: str, body: bytes) -> bool:
        """Write the answer, or the fault instead; return whether the connection stays usable."""
        if fault.startswith("status"):
            status = int(fault.split()[1])
            retry_after = b"retry-after: 1\r\n" if status == 429 else b""
            writer.write(b"HTTP/1.1 %d No\r\n%scontent-length: 2\r\n\r\n{}" % (status, retry_after))
        elif fault == "reset":
            writer.write(head_of(body) + body[: len(body) // 2])
            await writer.drain()
            writer.transport.abort()
            return False
        elif fault == "stall":
            writer.write(head_of(body) + body[:10])
            await asyncio.sleep(600)  # cancelled when the server closes
        elif fault == "not json":
            writer.write(head_of(b"<html>") + b"<html>")
        elif fault == "wrong shape":
            writer.write(head_of(b'{"a": 1}') + b'{"a": 1}')
        else:
            await asyncio.sleep(LATE_SECONDS if fault == "late" else 0.01)
            writer.write(head_of(body) + body)
        return True


def answer_to(request: dict[str, object]) -> bytes:
    items = request["input"]
    assert isinstance(items, list)
    content = items[-1]["content"]
    question = content if isinstance(content, str) else content[0]["text"]
    total = sum(int(word) for word in question.split() if word.isdecimal())
    text = {"type": "output_text", "text": f"It is {total}.", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return json.dumps(
        {
            "id": "r",
            "object": "response",
            "created_at": 1.0,
            "model": "chaos",
            "status": "completed",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14, **details},
        }
    ).encode()


def content_length(head: bytes) -> int:
    lines = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(next(lines).split(b":")[1])


def head_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    """Serve the endpoint on a background thread while the block runs; yield its URL."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=4096))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
