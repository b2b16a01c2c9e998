"""JSON as our calls and files carry it."""

import json
from typing import Any

import orjson
from pydantic_core import to_jsonable_python


def encode_json(body: Any) -> bytes:
    """JSON bytes of plain data, dates, sets, models and the like. Integers beyond 64 bits keep their value."""
    try:
        return orjson.dumps(body, default=to_jsonable_python, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
        return _encode_big_integers(body)


def _encode_big_integers(body: Any) -> bytes:
    return json.dumps(body, default=to_jsonable_python, ensure_ascii=False, allow_nan=False).encode()
