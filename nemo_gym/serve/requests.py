"""Requests with strict JSON and a size limit, and JSON answers."""

import json
from typing import Any

import orjson
from fastapi import HTTPException, Request
from fastapi.encoders import jsonable_encoder
from pydantic_core import from_json

LARGEST_BODY = 512 * 1024 * 1024
"""Bytes. A request body beyond this is refused with 413 before it is read to the end."""


def parse_json(body: bytes) -> Any:
    """Plain data from a JSON body.

    NaN, broken UTF-8, lone surrogates and nesting beyond 200 levels are errors; integers keep their exact value.

    Raises:
        json.JSONDecodeError: the body is not such JSON.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def json_bytes(value: Any) -> bytes:
    """JSON of anything FastAPI can encode; what orjson refuses (huge integers, lone surrogates) goes the slow way."""
    try:
        return orjson.dumps(value, default=jsonable_encoder, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value, default=jsonable_encoder).encode("ascii")


class GymRequest(Request):
    """A request whose JSON is parsed strictly and whose body has a limit."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            chunks = []
            size = 0
            async for chunk in self.stream():
                size += len(chunk)
                if size > LARGEST_BODY:
                    raise HTTPException(413, f"the request body is larger than {LARGEST_BODY} bytes")
                chunks.append(chunk)
            self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json
