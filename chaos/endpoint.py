"""A model endpoint that answers sums rightly, and every so often does one of the things endpoints do."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LATE_SECONDS = 6.0
STATUSES = (429, 500, 502, 503, 504)
FAULTS = (*(f"status {status}" for status in STATUSES), "reset", "stall", "late", "not json", "wrong shape")


class Endpoint:
    """Answers on a thread of its own. `share` of the calls go wrong, decided by the seed."""

    def __init__(self, seed: int, share: float) -> None:
        self.share = share
        self.calls: Counter[str] = Counter()
        self._chance = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side has had enough."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):  # somebody asks whether we are there
                    writer.write(head_of(b"{}") + b"{}")
                    continue
                request = json.loads(await reader.readexactly(content_length(head)))
                fault = self._chance.choice(FAULTS) if self._chance.random() < self.share else "none"
                self.calls[fault] += 1
                if not await self._answer(writer, fault, answer_to(request)):
                    break
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, fault: str, body: bytes) -> bool:
        """Whether the connection can be used again."""
        if fault.startswith("status"):
            status = int(fault.split()[1])
            again = b"retry-after: 1\r\n" if status == 429 else b""
            writer.write(b"HTTP/1.1 %d No\r\n%scontent-length: 2\r\n\r\n{}" % (status, again))
        elif fault == "reset":
            writer.write(head_of(body) + body[: len(body) // 2])
            await writer.drain()
            writer.transport.abort()
            return False
        elif fault == "stall":
            writer.write(head_of(body) + body[:10])
            await asyncio.sleep(600)  # ends when the caller hangs up and the server closes
        elif fault == "not json":
            writer.write(head_of(b"<html>") + b"<html>")
        elif fault == "wrong shape":
            writer.write(head_of(b'{"a": 1}') + b'{"a": 1}')
        else:
            await asyncio.sleep(LATE_SECONDS if fault == "late" else 0.01)
            writer.write(head_of(body) + body)
        await writer.drain()
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
def running(endpoint: Endpoint) -> Iterator[str]:
    """The URL of the endpoint while the block runs."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(endpoint.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
