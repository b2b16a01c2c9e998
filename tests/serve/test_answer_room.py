"""Requests that are sent again with a lower output limit."""

import json
from typing import Any

import pytest
from aiohttp import ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.serve.answer_room import complete_in_context

URL_ = URL("http://h:1/v1/chat/completions")
REFUSAL = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (1000 in the messages, "
    "4000 in the completion)."
)


def refusal_of_length(*, is_after_events: bool) -> ClientResponseError:
    """Return the error of an endpoint whose context is too short, as status or in the middle of a stream."""
    error = ClientResponseError(RequestInfo(URL_, "POST", CIMultiDictProxy(CIMultiDict()), URL_), (), status=400)
    error.response_content = json.dumps({"error": {"message": REFUSAL}}).encode()  # type: ignore[attr-defined]
    error.comes_after_events = is_after_events  # type: ignore[attr-defined]
    return error


@pytest.mark.asyncio
@pytest.mark.parametrize("is_after_events", [False, True])
async def test_a_request_is_not_repeated_after_events_of_its_answer(is_after_events: bool) -> None:
    """The client has the first events already, and would get the start of a second answer after them."""
    limits: list[int] = []

    async def complete(payload: dict[str, Any]) -> str:
        limits.append(payload["max_tokens"])
        if len(limits) == 1:
            raise refusal_of_length(is_after_events=is_after_events)
        return "answer"

    if is_after_events:
        with pytest.raises(ClientResponseError):
            await complete_in_context({"max_tokens": 4000}, complete)
        assert limits == [4000]
    else:
        assert await complete_in_context({"max_tokens": 4000}, complete) == ({"max_tokens": 3096}, "answer")
