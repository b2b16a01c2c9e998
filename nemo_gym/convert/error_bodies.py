"""Errors of model servers in the form that the clients of each dialect read, as a body or as an event of a stream."""

import re
from dataclasses import dataclass
from typing import Any

from nemo_gym.convert.json_access import Json
from nemo_gym.wire.observations import Dialect

_OPENAI_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}
_MESSAGES_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_GEMINI_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPTIONS = {"temperature": "temperature", "top_p": "topP", "top_k": "topK", "max_output_tokens": "maxOutputTokens"}
_OPTIONS |= {"top_logprobs": "logprobs", "stop": "stopSequences", "seed": "seed"}
_CLIENT_FIELDS: dict[str, dict[str, str]] = {
    "messages": {"max_output_tokens": "max_tokens", "instructions": "system", "stop": "stop_sequences"},
    "gemini": {**{name: f"generationConfig.{field}" for name, field in _OPTIONS.items()},
               "instructions": "systemInstruction"},
}  # fmt: skip
"""The field of a client by the field of the Responses request that its request was converted to."""
_CONVERSATIONS = {"messages": "messages", "gemini": "contents"}
_ITEM_PATH = re.compile(r"\binput(?:[.\[]\d+\]?)(?:\.\w+|\[\d+\])*")
_FIELD = re.compile(r"^(\w+)(?=: )")

_EVENT_CODES = {429: "rate_limit_exceeded"}


@dataclass(frozen=True)
class ApiError:
    """A failure as a client sees it."""

    status: int
    message: str
    code: Any = None
    """The code of the endpoint, for example `context_length_exceeded`."""
    param: str | None = None
    """The field of the request that is the reason, if known."""

    @property
    def is_permanent(self) -> bool:
        """True if the same request would fail again."""
        return 400 <= self.status < 500 and self.status not in (408, 409, 425, 429)

    def body(self, dialect: Dialect) -> Json:
        """Return the body of an error answer; in the Messages API also the payload of an `error` event."""
        if dialect == "messages":
            default = "invalid_request_error" if self.is_permanent else "api_error"
            kind = _MESSAGES_TYPES.get(self.status, default)
            return {"type": "error", "error": {"type": kind, "message": self._message_for(dialect)}}
        if dialect == "gemini":
            default = "INVALID_ARGUMENT" if self.is_permanent else "INTERNAL"
            name = _GEMINI_STATUSES.get(self.status, default)
            return {"error": {"code": self.status, "message": self._message_for(dialect), "status": name}}
        default = "invalid_request_error" if self.is_permanent else "server_error"
        kind = _OPENAI_TYPES.get(self.status, default)
        code = self.code if isinstance(self.code, str) else None  # vLLM writes its status there; clients read a text
        return {"error": {"message": self.message, "type": kind, "code": code, "param": self.param}}

    def _message_for(self, dialect: Dialect) -> str:
        """Return the message with the client's names of the fields; items have no position in its conversation."""
        message = _ITEM_PATH.sub(_CONVERSATIONS[dialect], self.message)
        message = message.replace("file_url", "url")
        names = _CLIENT_FIELDS[dialect]
        return _FIELD.sub(lambda match: names.get(match[1], match[1]), message)

    @property
    def event_code(self) -> str:
        """The code of a failed response; clients send a request again unless it is `invalid_prompt` or the like."""
        if isinstance(self.code, str) and self.is_permanent:
            return self.code
        return _EVENT_CODES.get(self.status, "invalid_prompt" if self.is_permanent else "server_error")
