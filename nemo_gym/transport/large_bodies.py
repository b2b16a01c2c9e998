"""Limits on the size of bodies, memory for large answers, and work on them that must not block the event loop.

An answer of at most `LARGE_BYTES` is handled on the event loop. A larger answer of a model endpoint first reserves its
memory, so that many of them at once wait for each other instead of filling the memory, and is decompressed and parsed
on a thread.
"""

import asyncio
import math
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nemo_gym.config.keys import KEYS
from nemo_gym.errors import GymError
from nemo_gym.transport.event_loop import PerLoop

LARGE_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024
"""Maximum bytes of an error body that are read."""
LARGEST_ANSWERS_AT_ONCE = 2
"""Answers of the maximum size whose memory may be reserved at the same time on one event loop."""

COMPRESSED_STARTS = (b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda")
"""First bytes of gzip and zlib data; no JSON text begins with them."""
MAX_LAYERS = 3
"""Maximum times that a body may be compressed again; there is data that decompresses to itself."""
MAX_MEMBERS = 4096
"""Maximum members of a gzip body; each costs time, also if it is empty."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP_OR_ZLIB, RAW_DEFLATE = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS
INPUT_BYTES = 64 * 1024

PARSED_BYTES = ((b",", 64), (b"[", 64), (b"{", 232))
"""Approximate memory of a parsed JSON value by the character that starts or separates it."""
MAX_GROWTH = 16
"""Maximum memory of a parsed answer, as a multiple of the maximum size of its text."""


class ResponseTooLong(GymError, ValueError):
    """The response body is longer than the limit of the caller."""


@dataclass(slots=True)
class BodyLimits:
    """The limits of this process, set by `http_sessions.configure`."""

    body: int = KEYS["max_body_bytes"].default
    answer: int = KEYS["max_model_answer_bytes"].default


limits = BodyLimits()


def too_long(max_bytes: int, callee: str | None = None) -> ResponseTooLong:
    """Return the error for a body of more than `max_bytes`."""
    return ResponseTooLong(f"the answer is longer than {max_bytes:,} bytes", where=callee)


def too_long_request(max_bytes: int) -> str:
    """Return the text of the 413 answer to a request whose body is longer than `max_bytes`."""
    return f"the request body is larger than {max_bytes} bytes (max_body_bytes)"


class AnswerMemory:
    """The memory of one event loop that is reserved for large answers, first come, first served."""

    def __init__(self, _: asyncio.AbstractEventLoop) -> None:
        self._reserved = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def reserve(self, size: int) -> Callable[[], None]:
        """Wait until `size` bytes are free, reserve them and return the function that releases them."""
        admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, admission))
        self._admit()
        try:
            await admission
        except asyncio.CancelledError:
            self._release(0 if admission.cancelled() else size)
            raise
        held = [size]  # emptied by the first release, so that a second release has no effect
        return lambda: self._release(held.pop() if held else 0)

    def _release(self, size: int) -> None:
        self._reserved -= size
        self._admit()

    def _admit(self) -> None:
        """Reserve memory for the answers that waited longest; a single answer is always admitted."""
        while self._waiting:
            size, admission = self._waiting[0]
            if not admission.cancelled():
                if self._reserved and self._reserved + size > LARGEST_ANSWERS_AT_ONCE * limits.answer:
                    return
                self._reserved += size
                admission.set_result(None)
            self._waiting.popleft()


_memories = PerLoop(AnswerMemory)


def current_memory() -> AnswerMemory:
    return _memories.of(asyncio.get_running_loop())


class Decompressor:
    """Decompress a gzip body of any number of members, a zlib body or raw deflate data, at most to `max_bytes`."""

    def __init__(self, content: bytes, max_bytes: int) -> None:
        self._content = content
        self._position = 0
        self._max_bytes = max_bytes
        self.has_header = content.startswith(GZIP_MAGIC) or (
            content[:1] == b"x" and int.from_bytes(content[:2], "big") % 31 == 0
        )
        """False for raw deflate data, which nothing tells from data that is not compressed."""
        self._decoder = zlib.decompressobj(wbits=GZIP_OR_ZLIB if self.has_header else RAW_DEFLATE)
        self._members = 1
        self._chunks: list[bytes] = []
        self._size = 0

    def decode(self, max_output: float = math.inf) -> bool:
        """Decompress about `max_output` bytes; return True at the end of the body.

        Raises:
            ResponseTooLong: the decompressed body is longer than `max_bytes`.
            zlib.error: the body is damaged or incomplete.
        """
        goal = self._size + max_output
        while not self._decoder.eof or self._begin_member():
            if self._size >= goal:
                return False
            data = self._decoder.unconsumed_tail
            if not data:
                data = self._content[self._position : self._position + INPUT_BYTES]
                self._position += len(data)
            if not data:
                self._add(self._decoder.flush())  # at most a few kilobytes
                if not self._decoder.eof:
                    raise zlib.error("incomplete or truncated stream")
            else:
                self._add(self._decoder.decompress(data, LARGE_BYTES))
        return True

    def _begin_member(self) -> bool:
        """Begin the next member of a gzip body; False after the last one. Other data after a body is ignored."""
        position = self._position - len(self._decoder.unused_data)
        if not (self._content.startswith(GZIP_MAGIC) and self._content.startswith(GZIP_MAGIC, position)):
            return False
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise zlib.error(f"more than {MAX_MEMBERS} members")
        self._position, self._decoder = position, zlib.decompressobj(wbits=GZIP_OR_ZLIB)
        return True

    def _add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise too_long(self._max_bytes)

    def body(self) -> bytes:
        return b"".join(self._chunks)


def decompress_layers(body: bytes, max_bytes: int) -> bytes:
    """Decompress an answer that is still compressed because its endpoint compressed it more than once.

    Raises:
        ResponseTooLong: the decompressed answer is longer than `max_bytes`, or it was compressed too many times.
    """
    for _ in range(MAX_LAYERS):
        decompressor = Decompressor(body, max_bytes)
        try:
            decompressor.decode()
        except zlib.error:
            return body  # not compressed, or damaged
        body = decompressor.body()
        if not body.startswith(COMPRESSED_STARTS):
            return body
    raise ResponseTooLong(f"the answer is compressed more than {MAX_LAYERS} times")


def check_parsed_size(body: bytes, max_bytes: int) -> None:
    """Refuse JSON whose values would fill the memory when parsed.

    Raises:
        ResponseTooLong: the parsed values would take more than `MAX_GROWTH` times `max_bytes`.
    """
    if sum(body.count(mark) * size for mark, size in PARSED_BYTES) > MAX_GROWTH * max_bytes:
        raise ResponseTooLong("the answer contains too many JSON values")
