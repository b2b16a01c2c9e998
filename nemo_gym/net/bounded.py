"""Reading an answer no further than it is of use."""

from typing import Any

from nemo_gym.errors import GymError
from nemo_gym.net.local_response import LocalResponse


class AnswerTooLong(GymError, ValueError):
    """Somebody answered more than we are willing to hold."""


async def read_at_most(reply: Any, most: int, *, where: str) -> bytes:
    """The body of a response, if it has at most `most` bytes; the rest of a longer one is never fetched.

    Raises:
        AnswerTooLong: it has more; `where` names whose answer it is.
    """
    if isinstance(reply, LocalResponse):  # it is in memory already
        body: bytes | None = await reply.read()
    else:
        body = await _fetched(reply, most)
    if body is None or len(body) > most:
        raise AnswerTooLong(f"the answer is longer than {most:,} bytes", where=where)
    return body


async def _fetched(reply: Any, most: int) -> bytes | None:
    """The body from the network; None, and the connection closed, as soon as it is known to be too long."""
    pieces: list[bytes] = []
    size = reply.content_length or 0
    if size <= most:
        size = 0
        async for piece in reply.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                break
    if size > most:
        reply.close()
        return None
    return b"".join(pieces)
