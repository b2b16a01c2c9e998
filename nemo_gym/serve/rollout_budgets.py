"""Budgets of rollouts: count the model calls of a program outside of the agent server, and refuse calls over a limit.

The base URL that an agent gives to such a program (`resolve_model_base_url`) contains a budget: a random key and the
turn and token limit of the rollout. The model server counts under the key and refuses calls when a limit is reached;
when the rollout ends, the agent closes the budget and receives the counts. Cells share their ports, so a budget names
the cell that counts (that of the agent, else cell 0), and other cells ask it over a link. If that cell restarts,
counting starts again. Budgets that no agent closes are dropped when they are idle for long.
"""

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar

import orjson
from fastapi import HTTPException
from starlette.types import Receive, Scope, Send

from nemo_gym.errors import GymError
from nemo_gym.serve.correlation import current_budget_text
from nemo_gym.serve.session import CELL_ENV_VAR, SessionStore
from nemo_gym.transport.asgi import read_request_body, write_reply
from nemo_gym.transport.cell_link import CellLink
from nemo_gym.transport.deadlines import Allowance
from nemo_gym.wire.call_reply import Call, Reply

logger = logging.getLogger("nemo_gym.serve")

ROLLOUT_BUDGETS = "(rollout budgets)"
"""Reserved instance name: a call to it counts in the called cell (`count_here`)."""
CLOSE_BUDGET_PATH = "/rollout-budget/close"
CELL_SECONDS = 5.0
"""Time within which the cell that counts must answer."""
IDLE_SECONDS = 4 * 3600.0
"""Age of the last call after which an open budget is dropped; longer than any call may take."""
MAX_OPEN_BUDGETS = 100_000

_TEXT = re.compile(r"(?P<key>[0-9a-f]{16})-c(?P<cell>\d{1,4})(?:-s(?P<steps>\d{1,18}))?(?:-t(?P<tokens>\d{1,18}))?")
_SETTINGS = {"steps": "max_steps_per_rollout", "tokens": "max_tokens_per_rollout"}

LimitName = Literal["steps", "tokens"]
Usage = tuple[int, int, int, int, str]
"""Input and output tokens, the cached and reasoning tokens among them, and the model."""
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Budget:
    """The key under which the calls of one rollout are counted, and its limits; None means no limit."""

    key: str
    cell: int = 0
    """Number of the cell that counts."""
    steps: int | None = None
    tokens: int | None = None

    @classmethod
    def of_allowance(cls, allowance: Allowance) -> Self:
        """Return a new budget with the limits of a rollout."""
        cell = int(os.environ.get(CELL_ENV_VAR) or 0)
        return cls(secrets.token_hex(8), cell, allowance.steps, allowance.tokens)

    def __str__(self) -> str:
        """Return the text form in paths: `<key>-c<cell>[-s<steps>][-t<tokens>]`."""
        steps = "" if self.steps is None else f"-s{self.steps}"
        tokens = "" if self.tokens is None else f"-t{self.tokens}"
        return f"{self.key}-c{self.cell}{steps}{tokens}"


@lru_cache(maxsize=4096)
def parse_budget(text: str) -> Budget | None:
    """Parse the text form of a budget; None if it is malformed."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    steps, tokens = match["steps"], match["tokens"]
    return Budget(match["key"], int(match["cell"]), int(steps) if steps else None, int(tokens) if tokens else None)


@dataclass(slots=True)
class BudgetCounts:
    """What a rollout has used of its budget."""

    calls: int = 0
    """Calls that were admitted, failed ones included."""
    in_flight: int = 0
    turns: int = 0
    """Calls that the model answered."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model: str = ""
    """The model of the last answer, for its price."""
    reached_limit: LimitName | None = None
    """The limit because of which a call was refused."""

    def admit(self, budget: Budget) -> LimitName | None:
        """Count a call; if a limit is reached, return its name instead."""
        if budget.steps is not None and self.turns + self.in_flight >= budget.steps:
            self.reached_limit = "steps"
        elif budget.tokens is not None and self.input_tokens + self.output_tokens >= budget.tokens:
            self.reached_limit = "tokens"
        else:
            self.calls += 1
            self.in_flight += 1
            return None
        return self.reached_limit

    def settle(self, usage: Usage | None) -> None:
        """End a call; `usage` is the `Usage` of its answer, None without an answer."""
        self.in_flight -= 1
        if usage is not None:
            self.turns += 1
            self.input_tokens += usage[0]
            self.output_tokens += usage[1]
            self.cached_tokens += usage[2]
            self.reasoning_tokens += usage[3]
            self.model = usage[4] or self.model

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {
            "calls": self.calls,
            "turns": self.turns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "model": self.model,
            "reached_limit": self.reached_limit,
        }


_open_budgets: SessionStore[BudgetCounts] = SessionStore(max_sessions=MAX_OPEN_BUDGETS, idle_seconds=IDLE_SECONDS)
_links: list[CellLink] = []
"""The links to all cells by cell number; empty if this process is no cell."""


def set_cells(links: Sequence[CellLink]) -> None:
    """Ask these cells, by number, to count budgets that name them."""
    _links[:] = links


def current_budget() -> Budget | None:
    """Return the budget of the request being served; None without one.

    Raises:
        HTTPException: 400, the budget in the path is malformed.
    """
    text = current_budget_text()
    if text is None:
        return None
    budget = parse_budget(text)
    if budget is None:
        raise HTTPException(400, f"not a budget: {text!r}; use the base URL that the agent was given")
    return budget


async def admit_call(budget: Budget) -> None:
    """Count a model call of a rollout.

    Raises:
        HTTPException: 400, a limit of the rollout is reached. Clients do not repeat a request after this status.
    """
    name = await _count(budget, "admit")
    if name is not None:
        limit = budget.steps if name == "steps" else budget.tokens
        raise HTTPException(400, f"the rollout has reached its limit of {limit} {name} ({_SETTINGS[name]})")


async def settle_call(budget: Budget, usage: Usage | None) -> None:
    """End a call that was admitted; `usage` comes from its answer, None if the model did not answer."""
    await _count(budget, "settle", usage)


async def count_call(call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Count a model call for the budget in the path of the request, make it, and count the tokens of its answer.

    Raises:
        HTTPException: 400, the budget is malformed or a limit of the rollout is reached; the call is not made.
    """
    budget = current_budget()
    if budget is None:
        return await call()
    await admit_call(budget)
    usage = None
    try:
        answer = await call()
        if getattr(answer, "status_code", 200) < 400:  # a server may return its refusal as a response
            usage = usage_of_answer(answer)
    finally:
        await settle_call(budget, usage)
    return answer


async def close_current_budget() -> dict[str, Any]:
    """Drop the counts of the budget in the path of the request and return them; a handler of model servers."""
    budget = current_budget()
    if budget is None:
        raise HTTPException(400, "the path has no budget")
    counts: dict[str, Any] = await _count(budget, "close") or BudgetCounts().as_dict()
    return counts


def usage_of_answer(answer: Any) -> Usage:
    """Return the tokens and the model that an answer of any OpenAI dialect reports; 0 for what it does not."""
    usage = _value(answer, "usage")

    def count(fields: Any, *names: str) -> int:
        values = (_value(fields, name) for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    read = _value(usage, "input_tokens_details") or _value(usage, "prompt_tokens_details")
    written = _value(usage, "output_tokens_details") or _value(usage, "completion_tokens_details")
    return (
        count(usage, "input_tokens", "prompt_tokens"),
        count(usage, "output_tokens", "completion_tokens"),
        count(read, "cached_tokens"),
        count(written, "reasoning_tokens"),
        str(_value(answer, "model") or ""),
    )


def _value(fields: Any, name: str) -> Any:
    """Return a field of a dictionary or an object; None if it is missing."""
    return fields.get(name) if isinstance(fields, dict) else getattr(fields, name, None)


async def _count(budget: Budget, operation: str, usage: Usage | None = None) -> Any:
    """Apply an operation in the cell that counts; None, with a warning, if that cell does not answer."""
    here = os.environ.get(CELL_ENV_VAR)
    if budget.cell >= len(_links) or str(budget.cell) == here:
        return _apply(budget, operation, usage)
    body = orjson.dumps([str(budget), operation, usage])
    call = Call("POST", "http://127.0.0.1", "/", body=body, seconds=CELL_SECONDS)
    try:
        async with asyncio.timeout(CELL_SECONDS):
            reply = await _links[budget.cell].send(ROLLOUT_BUDGETS, call)
        return orjson.loads(reply.body_bytes())
    except (GymError, TimeoutError, ValueError) as error:  # a call that cannot be counted is served all the same
        logger.warning("cell %d did not count a model call (%s): %s", budget.cell, operation, error)
        return None


def _apply(budget: Budget, operation: str, usage: Usage | None) -> Any:
    """Apply an operation to the counts in this process."""
    if operation == "close":
        closed = _open_budgets.pop(budget.key)
        return None if closed is None else closed.as_dict()
    counts = _open_budgets.get(budget.key)
    if operation == "settle":
        if counts is not None:  # the rollout may have ended before its last call
            counts.settle(usage)
        return None
    if counts is None:
        counts = BudgetCounts()
        _open_budgets.put(budget.key, counts)
    return counts.admit(budget)


async def count_here(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - signature of an ASGI app
    """ASGI app: apply the operation in the body to the counts in this process and answer with its result."""
    text, operation, usage = orjson.loads(await read_request_body(receive))
    budget = parse_budget(text)
    result = None if budget is None else _apply(budget, operation, usage)
    await write_reply(Reply(200, orjson.dumps(result)), send)
