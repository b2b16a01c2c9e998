"""Cancel rollouts from outside: `POST /ng-rollout/<id>/cancel` ends the `/run` requests of a rollout in this process.

The handler of `/run` is cancelled where it waits, and with it the tool and model calls that it awaits, down to the
request at the engine. With `keep_prefix` (the default) `/run` then answers with what was generated so far, if its
caller asked for that (`Allowance.keep_replies`). Cells share their ports, so a cell that does not run the rollout asks
the other cells.
"""

import asyncio
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import orjson
from starlette.types import Receive, Scope, Send

from nemo_gym.errors import ServerUnreachable
from nemo_gym.serve.correlation import split_path
from nemo_gym.transport.asgi import write_reply
from nemo_gym.transport.cell_link import CellLink
from nemo_gym.wire.call_reply import Call, Reply

CANCEL_PATH = "/cancel"
CANCELLED_ROLLOUTS = "(cancel rollouts)"
"""Reserved instance name: a call to it cancels a rollout in the called cell only (`cancel_here`)."""

_ATTEMPT = re.compile(r"-a[0-9]+$")
"""The end of the id of a retried rollout; an agent that knows its rollout only from the header does not have it."""

_running: dict[str, set["RolloutScope"]] = {}
_other_cells: list[CellLink] = []


class RolloutScope:
    """`with RolloutScope(rollout_id) as scope`: the block can be cancelled by the id of its rollout.

    The block then ends without an exception, and `scope.is_cancelled` is True. A cancellation by other code remains a
    `CancelledError`.
    """

    __slots__ = ("_id", "_prior_cancellations", "_task", "is_cancelled", "keeps_prefix")

    def __init__(self, rollout_id: str | None) -> None:
        self._id = rollout_id
        self.is_cancelled = False
        self.keeps_prefix = True
        """False if the answer of the cancelled rollout is not needed."""

    def __enter__(self) -> Self:
        if self._id is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task: asyncio.Task[Any] = task
            self._prior_cancellations = task.cancelling()
            _running.setdefault(self._id, set()).add(self)
        return self

    def cancel(self, *, keep_prefix: bool) -> None:
        """Cancel the block; without effect if it is being cancelled already."""
        if not self.is_cancelled:
            self.is_cancelled, self.keeps_prefix = True, keep_prefix
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._id is None:
            return False
        scopes = _running[self._id]
        scopes.discard(self)
        if not scopes:
            del _running[self._id]
        if not self.is_cancelled:
            return False
        # As `asyncio.timeout` does: if other code cancelled the task as well, the `CancelledError` remains. Some client
        # libraries raise another error when they are cancelled.
        is_only_cancel = self._task.uncancel() <= self._prior_cancellations
        return is_only_cancel and kind is not None and issubclass(kind, Exception | asyncio.CancelledError)


def cancel_rollout(rollout_id: str, *, keep_prefix: bool = True) -> int:
    """Cancel the requests of a rollout in this process; return their number."""
    running = _running.get(rollout_id) or _running.get(_ATTEMPT.sub("", rollout_id)) or set()
    scopes = [scope for scope in running if not scope.is_cancelled]
    for scope in scopes:
        scope.cancel(keep_prefix=keep_prefix)
    return len(scopes)


def set_other_cells(links: Sequence[CellLink]) -> None:
    """Ask these cells for rollouts that this process does not run."""
    _other_cells[:] = links


def is_cancel_request(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and split_path(scope["path"])[0] == CANCEL_PATH)


async def answer_cancel(scope: Scope, send: Send) -> None:
    """Cancel the rollout of the path in this process or, if it does not run here, in the other cells; answer it."""
    rollout_id, keep_prefix = _cancel_arguments(scope)
    count = cancel_rollout(rollout_id, keep_prefix=keep_prefix)
    if not count and _other_cells:
        query = "" if keep_prefix else "?keep_prefix=false"
        call = Call("POST", "http://127.0.0.1", f"{scope['path']}{query}", seconds=5.0)
        replies = await asyncio.gather(
            *(link.send(CANCELLED_ROLLOUTS, call) for link in _other_cells), return_exceptions=True
        )
        for reply in replies:
            if isinstance(reply, Reply) and reply.status == 200:
                count += orjson.loads(reply.body_bytes())["cancelled"]
            elif isinstance(reply, BaseException) and not isinstance(reply, ServerUnreachable):
                raise reply
    await write_reply(Reply(200, orjson.dumps({"rollout_id": rollout_id, "cancelled": count})), send)


async def cancel_here(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - signature of an ASGI app
    """ASGI app: cancel the rollout of the path in this process."""
    rollout_id, keep_prefix = _cancel_arguments(scope)
    count = cancel_rollout(rollout_id, keep_prefix=keep_prefix)
    await write_reply(Reply(200, orjson.dumps({"rollout_id": rollout_id, "cancelled": count})), send)


def _cancel_arguments(scope: Scope) -> tuple[str, bool]:
    """Return the rollout id in the path, and False if the query says `keep_prefix=false`."""
    prefix = split_path(scope["path"])[1]
    assert prefix is not None
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return prefix["id"], query.get("keep_prefix", ["true"])[-1].lower() not in ("false", "0")
