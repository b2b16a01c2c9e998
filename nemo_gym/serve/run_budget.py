"""The agent's side of rollout budgets: one budget for the programs that an agent starts during a `/run`.

`RunBudget` is opened when the agent first asks for a base URL and closed when `/run` ends. Then the usage of the answer
becomes that of all counted calls, and a rollout that reached a limit ends as such, without a reward.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from nemo_gym.convert.responses_chat import empty_response
from nemo_gym.errors import ModelFailed
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY, RESPONSE_KEY_NAME
from nemo_gym.serve.correlation import maybe_rollout_id_from_run_body, rollout_path_prefix
from nemo_gym.serve.rollout_budgets import CLOSE_BUDGET_PATH, Budget
from nemo_gym.transport.deadlines import Allowance
from nemo_gym.wire.stored_rollout import LIMIT_CLASS, REWARD_KEY

logger = logging.getLogger("nemo_gym.serve")

CLOSE_SECONDS = 10.0
"""Time within which a model server must return the counts of a rollout."""
_COUNTS = ("calls", "turns", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")

ClosePath = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""Posts to a path of a model server, by name, and returns the JSON object of the answer."""

_closing: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class LimitedAnswer:
    """The answer of a `/run` that reached a limit."""

    record: dict[str, Any]


class RunBudget:
    """The budget of one `/run` request; without a call of `open_at` it costs nothing."""

    __slots__ = ("_allowance", "_body", "_budget", "_servers")

    def __init__(self, body: BaseModel | Mapping[str, Any] | None, allowance: Allowance | None) -> None:
        self._body = body
        self._allowance = allowance
        self._budget: Budget | None = None
        self._servers: dict[str, str] = {}  # names of model servers and the paths at which the budget is closed

    def rollout_id(self) -> str | None:
        """Return the rollout id of the request; None without one.

        Raises:
            ValueError: the id is not safe in a path.
        """
        return None if self._body is None else maybe_rollout_id_from_run_body(self._body)

    def open_at(self, server: str, rollout_id: str) -> str | None:
        """Return the text of the budget for calls to a model server; None if the rollout has no allowance."""
        if self._allowance is None:
            return None
        if self._budget is None:
            self._budget = Budget.of_allowance(self._allowance)
        text = str(self._budget)
        self._servers[server] = rollout_path_prefix(rollout_id, budget=text) + CLOSE_BUDGET_PATH
        return text

    @property
    def is_open(self) -> bool:
        """True if a program of this rollout may have called a model."""
        return bool(self._servers)

    async def close(self, post: ClosePath) -> dict[str, Any]:
        """Close the budget at its model servers and return the sums of their counts.

        A server that does not answer adds nothing: a rollout is not lost because its calls cannot be counted.
        """
        servers, self._servers = self._servers, {}
        sums: dict[str, Any] = {**dict.fromkeys(_COUNTS, 0), "model": "", "reached_limit": None, "server": ""}
        for server, path in servers.items():
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    counts = await post(server, path)
            except Exception as error:
                logger.warning("%s did not return the counts of a rollout: %r", server, error)
                continue
            for name in _COUNTS:
                sums[name] += counts[name]
            sums["model"] = counts["model"] or sums["model"]
            sums["server"] = server if counts["calls"] else sums["server"]
            sums["reached_limit"] = counts["reached_limit"] or sums["reached_limit"]
        return sums

    def check_answered(self, counts: Mapping[str, Any]) -> None:
        """Check that the model has answered a call, if a program made any.

        Raises:
            ModelFailed: every call failed. Many programs end with status 0 and an empty result then, which must not be
                scored.
        """
        if not counts["calls"] or counts["turns"]:
            return
        raise ModelFailed(
            f"the model answered none of the {counts['calls']} calls of the rollout",
            where=counts["server"],
            fix="the log of the model server has the reasons",
        )

    def close_later(self, post: ClosePath) -> None:
        """Close the budget in the background, because the request is being cancelled."""
        if not self._servers:
            return

        async def close() -> None:
            await self.close(post)

        task = asyncio.get_running_loop().create_task(close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    def limited_answer(self, answer: Any, counts: Mapping[str, Any]) -> LimitedAnswer:
        """Return the answer of a `/run` that reached a limit: the agent's answer, if it gave one, without a reward."""
        record = {name: value for name, value in _as_fields(self._body, answer).items() if name != REWARD_KEY}
        record.setdefault(
            RESPONSE_KEY_NAME, empty_response("", int(time.time()), counts["model"]) | {"status": "incomplete"}
        )
        record |= {NG_FAILURE_CLASS_KEY: LIMIT_CLASS, NG_FAILURE_DETAIL_KEY: {"which": counts["reached_limit"]}}
        return LimitedAnswer(with_usage(record, counts))


def spent_tokens(counts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a response without output whose usage is what a failed `/run` has spent; None if it spent nothing."""
    if not counts["turns"]:
        return None
    response: dict[str, Any] = with_usage({RESPONSE_KEY_NAME: _unfinished_response(counts)}, counts)[RESPONSE_KEY_NAME]
    return response


def _unfinished_response(counts: Mapping[str, Any]) -> dict[str, Any]:
    return empty_response("", int(time.time()), counts["model"]) | {"status": "incomplete"}


def _as_fields(body: Any, answer: Any) -> dict[str, Any]:
    """Return the fields of an agent's answer; if the agent failed, the fields of the request, without a response."""
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json")
    if isinstance(answer, dict):
        return answer
    fields = body.model_dump(mode="json", exclude_unset=True) if isinstance(body, BaseModel) else dict(body or {})
    fields.pop(RESPONSE_KEY_NAME, None)  # a row may be the record of an earlier rollout
    return fields


def with_usage(answer: Any, counts: Mapping[str, Any]) -> Any:
    """Return an agent's answer with the counted tokens as the usage of its response.

    A response that reports more tokens keeps its usage: the agent may have called a model itself as well.
    """
    response = answer.get(RESPONSE_KEY_NAME) if isinstance(answer, dict) else getattr(answer, RESPONSE_KEY_NAME, None)
    if response is None or not counts["turns"]:
        return answer
    total = counts["input_tokens"] + counts["output_tokens"]
    usage = {
        "input_tokens": counts["input_tokens"],
        "input_tokens_details": {"cached_tokens": counts["cached_tokens"]},
        "output_tokens": counts["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": counts["reasoning_tokens"]},
        "total_tokens": total,
    }
    reported = response.get("usage") if isinstance(response, dict) else getattr(response, "usage", None)
    value = reported.get("total_tokens") if isinstance(reported, dict) else getattr(reported, "total_tokens", None)
    if isinstance(value, int) and value >= total:
        return answer
    if isinstance(response, dict):
        return {**answer, RESPONSE_KEY_NAME: {**response, "usage": usage}}
    updated = type(response).model_validate({**response.model_dump(exclude_unset=True), "usage": usage})
    return answer.model_copy(update={RESPONSE_KEY_NAME: updated})


OpenBudgets = list[RunBudget]
"""The budget of one `/run` request, once a program needs it."""

_run: ContextVar[tuple[Any, Allowance | None, OpenBudgets] | None] = ContextVar("nemo_gym_run", default=None)
set_run = _run.set
"""Set the body of the current `/run` request, its allowance and the list for its budget."""


def current_run_budget() -> RunBudget | None:
    """Return the budget of the current `/run` request; None outside of one."""
    run = _run.get()
    if run is None:
        return None
    body, allowance, budgets = run
    if not budgets:
        budgets.append(RunBudget(body, allowance))
    return budgets[0]
