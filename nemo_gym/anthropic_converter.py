"""The Anthropic Messages API on both sides of us: clients that speak it, and models that do."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from time import time
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from nemo_gym.convert import message_events, responses_messages, sse
from nemo_gym.convert.message_options import unsaid_in_messages, unsaid_of_messages
from nemo_gym.convert.plain import plain
from nemo_gym.errors import ConversionError
from nemo_gym.wire.responses import NeMoGymResponse

log = logging.getLogger(__name__)


class AnthropicConverter:
    """Responses ↔ Messages. It has no state; what one side cannot say is a `ConversionError`, a lost hint a warning."""

    def request_to_responses(self, body: Any) -> dict[str, Any]:
        """A Messages client's request as a Responses request."""
        body = plain(body)
        params = responses_messages.responses_request(body, new_id=_new_id)
        for field in unsaid_of_messages(body):
            _warn_once(f"{field!r} of a Messages request is not passed on: our models have no word for it")
        return params

    def response_to_message(self, response: Any, requested_model: str) -> dict[str, Any]:
        """A response as the message its client gets, under the model name the client asked for."""
        return responses_messages.message_from_response(plain(response), model=requested_model, new_id=_new_id)

    def replay(self, message: dict[str, Any]) -> Iterator[bytes]:
        """A finished message, told as server-sent events."""
        return sse.encode_typed(message_events.events_from_message(message))

    def responses_to_anthropic(
        self,
        body: Any,
        model: str,
        max_tokens: int,
        thinking: Any = None,
        thinking_budget_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A Responses request as a request to a Messages model; the request's own fields win over `extra_body`.

        `max_tokens` is the limit when the request gives none. `thinking` is True, one of Anthropic's words
        (enabled, adaptive, disabled), or the finished object.
        """
        params = plain(body)
        request = responses_messages.messages_request(
            params, model=model, max_tokens=max_tokens, thinking=thinking, thinking_budget_tokens=thinking_budget_tokens
        )
        for field in unsaid_in_messages(params):
            _warn_once(f"{field!r} is not sent to {model}: the Messages API has no word for it")
        return {**(extra_body or {}), **request}

    def anthropic_to_responses(self, resp: Any, request_body: Any, model: str) -> NeMoGymResponse:
        """A Messages model's answer as the response to the Responses request `request_body`."""
        response = responses_messages.response_from_message(
            plain(request_body, leave_out=("input",)), plain(resp), model=model, now=int(time()), new_id=_new_id
        )
        try:
            return NeMoGymResponse.model_validate(response)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise ConversionError(first["msg"], where=f"response.{where}") from error


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


@lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    log.warning(text)
