"""Responses API ↔ Anthropic Messages for wire types: for Messages clients and for Messages models."""

from collections.abc import Iterator
from time import time
from typing import Any

from nemo_gym.convert import responses_anthropic, sse
from nemo_gym.convert.json_access import from_dict, new_id, to_dict, warn_once
from nemo_gym.convert.message_stream import events_from_message
from nemo_gym.convert.responses_anthropic import options_lost_from_messages, options_lost_in_messages
from nemo_gym.wire.responses import NeMoGymResponse


class AnthropicConverter:
    """Converts requests and replies. It has no state; a dropped option is logged once."""

    def request_to_responses(self, body: Any) -> dict[str, Any]:
        """Convert a Messages request to Responses."""
        body = to_dict(body)
        params = responses_anthropic.responses_request(body, new_id=new_id)
        for field in options_lost_from_messages(body):
            warn_once(f"{field!r} of a Messages request is not passed on: our models have no such option")
        return params

    def response_to_message(self, response: Any, requested_model: str) -> dict[str, Any]:
        """Convert a response to a message with the model name of the request."""
        return responses_anthropic.message_from_response(to_dict(response), model=requested_model, new_id=new_id)

    def replay(self, message: dict[str, Any]) -> Iterator[bytes]:
        """Encode a finished message as server-sent events."""
        return sse.encode_typed(events_from_message(message))

    anthropic_request_to_responses = request_to_responses
    responses_to_anthropic_response = response_to_message
    anthropic_response_to_sse = replay

    def responses_to_anthropic(
        self,
        body: Any,
        model: str,
        max_tokens: int,
        thinking: Any = None,
        thinking_budget_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Convert a Responses request to Messages; fields of the request override `extra_body`.

        `max_tokens` is the limit if the request has none. `thinking` is True, one of Anthropic's types (enabled,
        adaptive, disabled), or the complete object.
        """
        params = to_dict(body)
        request = responses_anthropic.messages_request(
            params, model=model, max_tokens=max_tokens, thinking=thinking, thinking_budget_tokens=thinking_budget_tokens
        )
        for field in options_lost_in_messages(params):
            warn_once(f"{field!r} is not sent to {model}: the Messages API has no such option")
        return {**(extra_body or {}), **request}

    def anthropic_to_responses(self, anthropic_response: Any, request_body: Any, model: str) -> NeMoGymResponse:
        """Convert a message to the response to the Responses request `request_body`."""
        response = responses_anthropic.response_from_message(
            to_dict(request_body), to_dict(anthropic_response), model=model, now=int(time()), new_id=new_id
        )
        return from_dict(NeMoGymResponse, response)
