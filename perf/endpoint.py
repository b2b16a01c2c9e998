"""Serve a fast mock of an OpenAI-compatible endpoint: `python -m perf.endpoint PORT_FILE [LATENCY_MS]`.

The reply to the first turn of a conversation is a call of `get_weather`; the reply to a turn with a tool output is a
message. Both replies are prepared and chosen by a byte search; no request is parsed.
"""

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

import uvloop

USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 120,
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city": "sf"}',
    "status": "completed",
}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "It is cold in sf today; bring a jacket.", "annotations": []}],
}


def answer(item: dict[str, Any]) -> bytes:
    """Return a complete HTTP response with one output item."""
    body = json.dumps(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1700000000.0,
            "model": "mock",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "output": [item],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "max_output_tokens": None,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": USAGE,
            "user": None,
        }
    ).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


FIRST, LAST = answer(CALL), answer(MESSAGE)


class EndpointProtocol(asyncio.Protocol):
    """Answer the requests of one connection in order, each after the latency."""

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._request_end()) is not None:
            request, self._rest = self._rest[:end], self._rest[end:]
            reply = LAST if b"function_call_output" in request else FIRST
            if self._latency:
                asyncio.get_running_loop().call_later(self._latency, self._transport.write, reply)
            else:
                self._transport.write(reply)

    def _request_end(self) -> int | None:
        head, separator, body = self._rest.partition(b"\r\n\r\n")
        if not separator:
            return None
        lowered = head.lower()
        start = lowered.find(b"content-length:")
        if start < 0:
            return len(head) + 4
        length = int(lowered[start + 15 :].split(b"\r\n", 1)[0])
        return len(head) + 4 + length if len(body) >= length else None


def announce(port_file: Path, port: int) -> None:
    port_file.write_text(str(port))


async def serve(port_file: Path, latency: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EndpointProtocol(latency), "127.0.0.1", 0, backlog=65535)
    announce(port_file, server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0))
