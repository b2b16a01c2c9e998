"""Cancel rollouts from outside: `POST /ng-rollout/<id>/cancel` ends the `/run` requests of a rollout of an agent.

The handler of `/run` is cancelled where it waits, and with it the tool and model calls that it awaits, down to the
request at the engine. With `keep_prefix` (the default) `/run` then answers with what was generated so far. Only
requests that ask for that (`Allowance.keep_replies`) can be cancelled. Callers that share an agent may use the same
ids, so `caller` restricts the cancellation to requests with this number as `keep_replies`. Cells share their ports, so
a cell that does not run the rollout asks the other cells.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlencode

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

CELL_SECONDS = 0.5
"""Time within which another cell must answer; a session waits a second for a cancelled rollout."""

_running: dict[tuple[str, str], set["RolloutScope"]] = {}
"""The scopes by name of the agent and rollout id."""
_other_cells: list[CellLink] = []


class RolloutScope:
    """`with RolloutScope(agent, rollout_id) as scope`: the block can be cancelled by its agent and rollout id, if any.

    The block then ends without an exception, and `scope.is_cancelled` is True. A cancellation by other code remains a
    `CancelledError`.
    """

    __slots__ = ("_key", "_prior_cancellations", "_task", "caller", "has_attempt", "is_cancelled", "keeps_prefix")

    def __init__(
        self, agent: str, rollout_id: str | None, *, caller: int | None = None, has_attempt: bool = True
    ) -> None:
        self._key = None if rollout_id is None else (agent, rollout_id)
        self.caller = caller
        self.has_attempt = has_attempt
        """False if the rollout id does not tell attempts apart."""
        self.is_cancelled = False
        self.keeps_prefix = True
        """False if the answer of the cancelled rollout is not needed."""

    def __enter__(self) -> Self:
        if self._key is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task: asyncio.Task[Any] = task
            self._prior_cancellations = task.cancelling()
            _running.setdefault(self._key, set()).add(self)
        return self

    def cancel(self, *, keep_prefix: bool) -> None:
        """Cancel the block; without effect if it is being cancelled already."""
        if not self.is_cancelled:
            self.is_cancelled, self.keeps_prefix = True, keep_prefix
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._key is None:
            return False
        scopes = _running[self._key]
        scopes.discard(self)
        if not scopes:
            del _running[self._key]
        if not self.is_cancelled:
            return False
        # As `asyncio.timeout` does: if other code cancelled the task as well, the `CancelledError` remains. Some client
        # libraries raise another error when they are cancelled.
        is_only_cancel = self._task.uncancel() <= self._prior_cancellations
        return is_only_cancel and kind is not None and issubclass(kind, Exception | asyncio.CancelledError)


@dataclass(frozen=True)
class Cancellation:
    """The arguments of a cancel request."""

    agent: str
    rollout_id: str
    keep_prefix: bool = True
    caller: int | None = None
    """Cancel only requests of this caller; None for all."""

    @classmethod
    def of(cls, scope: Scope, agent: str | None = None) -> Self:
        """Read the path and the query of a request; without `agent`, the query has the name of the agent."""
        prefix = split_path(scope["path"])[1]
        assert prefix is not None
        query = {
            name: values[-1] for name, values in parse_qs(scope.get("query_string", b"").decode("latin-1")).items()
        }
        caller = query.get("caller")
        return cls(
            agent=query.get("agent", "") if agent is None else agent,
            rollout_id=prefix["id"],
            keep_prefix=query.get("keep_prefix", "true").lower() not in ("false", "0"),
            caller=None if caller is None else int(caller) if caller.isdecimal() else 0,  # no request has 0
        )

    def query(self) -> str:
        """Return the query of the request to another cell."""
        caller = {} if self.caller is None else {"caller": self.caller}
        return urlencode({"agent": self.agent, "keep_prefix": str(self.keep_prefix), **caller})

    def apply(self) -> int:
        """Cancel the requests of the rollout in this process; return their number."""
        scopes = self._running(self.rollout_id) or [
            scope for scope in self._running(_ATTEMPT.sub("", self.rollout_id)) if not scope.has_attempt
        ]
        for scope in scopes:
            scope.cancel(keep_prefix=self.keep_prefix)
        return len(scopes)

    def _running(self, rollout_id: str) -> list[RolloutScope]:
        running = _running.get((self.agent, rollout_id), ())
        return [scope for scope in running if not scope.is_cancelled and self.caller in (None, scope.caller)]


def set_other_cells(links: Sequence[CellLink]) -> None:
    """Ask these cells for rollouts that this process does not run."""
    _other_cells[:] = links


def is_cancel_request(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and split_path(scope["path"])[0] == CANCEL_PATH)


async def answer_cancel(scope: Scope, send: Send, agent: str) -> None:
    """Cancel the rollout of the path in this process or, if it does not run here, in the other cells; answer it."""
    cancellation = Cancellation.of(scope, agent)
    count = cancellation.apply()
    if not count and _other_cells:
        call = Call("POST", "http://127.0.0.1", f"{scope['path']}?{cancellation.query()}", seconds=5.0)
        count = sum(await asyncio.gather(*(_cancel_in_cell(link, call) for link in _other_cells)))
    await _answer_count(cancellation, count, send)


async def _cancel_in_cell(link: CellLink, call: Call) -> int:
    """Return the number of requests that another cell cancelled; 0 if it does not answer in time."""
    try:
        async with asyncio.timeout(CELL_SECONDS):
            reply = await link.send(CANCELLED_ROLLOUTS, call)
    except (TimeoutError, ServerUnreachable):
        return 0
    return int(orjson.loads(reply.body_bytes())["cancelled"]) if reply.status == 200 else 0


async def cancel_here(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - signature of an ASGI app
    """ASGI app: cancel the rollout of the path in this process."""
    cancellation = Cancellation.of(scope)
    await _answer_count(cancellation, cancellation.apply(), send)


async def _answer_count(cancellation: Cancellation, count: int, send: Send) -> None:
    await write_reply(Reply(200, orjson.dumps({"rollout_id": cancellation.rollout_id, "cancelled": count})), send)
