"""Measure the way of the first byte of a streamed answer through a model server: `python -m perf.streams [STREAMS]`.

An endpoint, a model server and a client run on three event loops of this process, so that one clock sees them all. The
endpoint writes the first piece of its answer and waits: the time until the client has that piece contains everything
that the server adds, and none of the generation. The figure of a dialect is the best of its streams, because other work
on the machine only adds; the median is shown beside it.
"""

import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from socket import create_server
from typing import Any

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.convert.response_events import events_from_response, numbered_events
from nemo_gym.convert.responses_chat import empty_response
from nemo_gym.serve.webserver import serve_in_thread
from nemo_gym.server_utils import ServerClient, server_config
from responses_api_models.openai_model.app import SimpleModelServer
from responses_api_models.vllm_model.app import VLLMModel

STREAMS = 100
MAX_MS = 50.0
WAIT_SECONDS = 60.0

PIECE = "the-first-piece"
USER = {"role": "user", "content": "hi"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Responses": ("/v1/responses", {"input": "hi", "stream": True}),
    "Chat": ("/v1/chat/completions", {"messages": [USER], "stream": True}),
    "Messages": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [USER], "stream": True}),
    "Gemini": (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    ),
}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def chat_stream() -> tuple[bytes, bytes]:
    """Return the first piece of a Chat stream, and the rest."""
    return encode([chunk({"role": "assistant", "content": PIECE})]), encode([chunk({}, "stop")]) + b"data: [DONE]\n\n"


def responses_stream() -> tuple[bytes, bytes]:
    """Return a Responses stream up to its first delta, and the rest."""
    part = {"type": "output_text", "text": PIECE, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    response = {**empty_response("r", 1, "m"), "status": "completed", "output": [message]}
    events = list(numbered_events(events_from_response(response)))
    begun = next(n for n, event in enumerate(events) if event["type"] == "response.output_text.delta") + 1
    return encode(events[:begun]), encode(events[begun:])


def encode(events: list[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def http_chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


@dataclass
class PausingEndpoint:
    """An endpoint that notes when it writes its first piece, and writes the rest when the client has that piece."""

    first_byte_at: float = 0.0
    client_has_piece: threading.Event = field(default_factory=threading.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        streams = {b"/v1/chat/completions": chat_stream(), b"/v1/responses": responses_stream()}
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                await reader.readexactly(length)
                first, rest = streams[head.split(b" ", 2)[1]]
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                self.first_byte_at = time.perf_counter()
                writer.write(http_chunk(first))
                await asyncio.to_thread(self.client_has_piece.wait, WAIT_SECONDS)
                writer.write(http_chunk(rest) + b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def running_endpoint() -> Iterator[tuple[PausingEndpoint, int]]:
    """Serve the endpoint on its own event loop; yield it and its port."""
    endpoint, loop = PausingEndpoint(), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(endpoint.answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield endpoint, server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_SECONDS)
        connections = asyncio.all_tasks(loop)
        for connection in connections:
            connection.cancel()
        if connections:
            loop.run_until_complete(asyncio.wait(connections))
        loop.close()


@contextmanager
def running_models(endpoint_port: int) -> Iterator[dict[str, int]]:
    """Serve the model servers; yield their ports by name."""
    url = f"http://127.0.0.1:{endpoint_port}/v1"
    fields: dict[str, dict[str, Any]] = {
        "openai_model": {"openai_base_url": url, "openai_api_key": "k", "openai_model": "m"},
        "vllm_model": {
            "base_url": url,
            "api_key": "k",
            "model": "m",
            "return_token_id_information": False,
            "uses_reasoning_parser": True,
        },
    }
    classes: dict[str, Callable[..., Any]] = {"openai_model": SimpleModelServer, "vllm_model": VLLMModel}
    ports = {name: free_port() for name in fields}
    config: dict[str, Any] = {"head_server": {"host": "127.0.0.1", "port": 1}}
    for name, values in fields.items():
        block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": ports[name], **values}
        config[name] = {"responses_api_models": {name: block}}
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=config)
    with ExitStack() as stack:
        for name, cls in classes.items():
            loaded = server_config(cls, client.global_config_dict, name)  # type: ignore[arg-type]
            app = cls(config=loaded, server_client=client).prepare_webserver(config)
            server, thread = serve_in_thread(app, host="127.0.0.1", port=ports[name])
            stack.callback(thread.join, WAIT_SECONDS)
            stack.callback(setattr, server, "should_exit", True)
        yield ports


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def stream_delays(endpoint: PausingEndpoint, port: int, dialect: str, streams: int) -> list[float]:
    """Return the milliseconds from the endpoint's first piece to the client's, for each stream on one connection.

    A stream before them is not counted and does not pause: `vllm_model` holds back the first answer under a chat
    template, because only its end shows whether the template puts thoughts into the text.
    """
    path, body = REQUESTS[dialect]
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    delays = []
    try:
        endpoint.client_has_piece.set()
        for _ in range(streams + 1):
            writer.write(head.encode() + b"\r\n\r\n" + content)
            async with asyncio.timeout(WAIT_SECONDS):
                await reader.readuntil(PIECE.encode())
                delays.append(1000 * (time.perf_counter() - endpoint.first_byte_at))
                endpoint.client_has_piece.set()
                await reader.readuntil(b"\r\n0\r\n\r\n")
            endpoint.client_has_piece.clear()
    finally:
        endpoint.client_has_piece.set()
        writer.close()
    return delays[1:]


def measure(streams: int = STREAMS) -> dict[str, dict[str, float]]:
    """Return the best and the median delay of each server and dialect, in milliseconds."""
    results = {}
    with running_endpoint() as (endpoint, endpoint_port), running_models(endpoint_port) as ports:
        for name, port in ports.items():
            for dialect in REQUESTS:
                delays = asyncio.run(stream_delays(endpoint, port, dialect, streams))
                results[f"{name} {dialect}"] = {"best_ms": min(delays), "median_ms": statistics.median(delays)}
    return results


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:2])), indent=2))
