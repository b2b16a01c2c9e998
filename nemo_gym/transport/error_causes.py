"""Find the cause in an error text that the servers of a call chain wrapped, each in other words."""

import ast
import json
import re
from typing import Any

from nemo_gym import errors

MAX_LAYERS = 20
_HOP = re.compile(r"(?:\S+ answered \d+: )?Hit an exception in \S+ calling an inner server:\s*")
_EXCEPTION = re.compile(r"(\w+)\((['\"].*['\"])\)", re.DOTALL)
"""The `repr` of an exception with one text."""
_INVALID_FIELD = re.compile(
    r'"loc":\s*(\[(?:"(?:[^"\\]|\\.){0,200}+"|[\s\d,]){0,100}+\]),\s*"msg":\s*("(?:[^"\\]|\\.){0,2000}")'
)
"""Place and message of a problem in an answer 422 of FastAPI; the answer repeats the request and may be cut."""
MAX_FIELDS = 5
"""Maximum problems of an answer 422 that an error names."""
_NEXT_STEP = re.compile(r"\n[ \t]*try: ")
"""Begins the last line of our errors, which has the fix. Linear: a model may have written thousands of line breaks."""


def innermost_cause(text: str) -> str:
    """Return the cause without the words of the servers that passed it on: no JSON in JSON, no class of NeMo Gym.

    An error body of an endpoint becomes its message with its code: `Incorrect API key provided (invalid_api_key)`.
    """
    for _ in range(MAX_LAYERS):
        unwrapped = _unwrap(text.strip())
        if unwrapped is None:
            break
        text = unwrapped
    return _NEXT_STEP.sub("; ", text.strip())


def _unwrap(text: str) -> str | None:
    """Remove one layer; return None if the text has none."""
    if hop := _HOP.match(text):
        return text[hop.end() :]
    if text.startswith(('"', "{")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # a long text is cut
            return _invalid_fields(text)
        return value if isinstance(value, str) else _message_of(value)
    if exception := _EXCEPTION.fullmatch(text):
        try:
            message = str(ast.literal_eval(exception[2]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return message if hasattr(errors, exception[1]) else f"{exception[1]}: {message}"
    return None


def _message_of(body: dict[str, Any]) -> str | None:
    """Return the message of an error body, in the forms of OpenAI, Anthropic, FastAPI and others."""
    error = body.get("error", body)
    if isinstance(error, str):
        return error
    fields = error if isinstance(error, dict) else {}
    message = next((fields[key] for key in ("message", "detail") if isinstance(fields.get(key), str)), None)
    if message is None:
        return _invalid_fields(json.dumps(fields)) if isinstance(fields.get("detail"), list) else None
    inner = fields.get("innererror")  # of Azure, with a more precise code
    codes = [inner.get("code") if isinstance(inner, dict) else None, fields.get("code"), fields.get("type")]
    code = next((text for text in codes if isinstance(text, str)), None)
    return f"{message} ({code})" if code and code not in message else message


def _invalid_fields(text: str) -> str | None:
    """Return the problems in an answer 422 of FastAPI as `expected_answer: Field required`; None for other texts."""
    problems = []
    for place, message in _INVALID_FIELD.findall(text):
        try:
            names, problem = json.loads(place), json.loads(message)
        except ValueError:
            continue
        field = ".".join(map(str, names[1:] if names[:1] == ["body"] else names))
        problems.append(f"{field}: {problem}" if field else str(problem))
    more = f"; {len(problems) - MAX_FIELDS} more" if len(problems) > MAX_FIELDS else ""
    return "; ".join(problems[:MAX_FIELDS]) + more if problems else None
