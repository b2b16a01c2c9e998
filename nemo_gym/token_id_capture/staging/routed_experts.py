"""Routed experts of mixture-of-experts models as text: `nrlre1:<type>:<T>x<L>x<K>:<base64, little-endian>`."""

import base64
import re
import sys
from array import array
from collections.abc import Sequence
from typing import Literal

PREFIX = "nrlre1"
SENTINEL = -1
"""Expert number of a token whose routes the engine did not record."""

_TYPES = {"int8": "b", "int16": "h", "int32": "i"}
_PATTERN = re.compile(rf"{PREFIX}:(int8|int16|int32):(\d+)x(\d+)x(\d+):([A-Za-z0-9+/=]*)")

Routes = Sequence[Sequence[Sequence[int]]]
"""Expert numbers by token, layer and rank."""
RouteSpan = Literal["full", "tail", "sentinel"]


def encode_routed_experts(routes: Routes) -> str:
    """Encode routes with the smallest type that holds them.

    Raises:
        ValueError: the tokens or layers have different numbers of entries.
    """
    layers = len(routes[0]) if routes else 0
    experts = len(routes[0][0]) if layers else 0
    numbers = [number for token in routes for layer in token for number in layer]
    if len(numbers) != len(routes) * layers * experts or any(len(token) != layers for token in routes):
        raise ValueError("the routes of a call must have the same shape for every token")
    largest = max((abs(number) for number in numbers), default=0)
    name = "int8" if largest < 2**7 else "int16" if largest < 2**15 else "int32"
    values = array(_TYPES[name], numbers)
    if sys.byteorder == "big":
        values.byteswap()
    data = base64.b64encode(values.tobytes()).decode("ascii")
    return f"{PREFIX}:{name}:{len(routes)}x{layers}x{experts}:{data}"


def decode_routed_experts(text: str) -> list[list[list[int]]]:
    """Decode routes.

    Raises:
        ValueError: the text is no envelope, or its shape and data do not agree.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"not a routed experts envelope: {text[:40]!r}")
    tokens, layers, experts = (int(match[index]) for index in (2, 3, 4))
    values = array(_TYPES[match[1]])
    values.frombytes(base64.b64decode(match[5]))
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != tokens * layers * experts:
        raise ValueError(f"the envelope has {len(values)} numbers, not {tokens}x{layers}x{experts}")
    numbers = iter(values)
    return [[[next(numbers) for _ in range(experts)] for _ in range(layers)] for _ in range(tokens)]


def classify_route_span(routes: Routes, *, cum_len: int, delta_len: int) -> RouteSpan:
    """Return which tokens of a call the routes cover: all (`full`), its delta (`tail`), or none (`sentinel`).

    Raises:
        ValueError: the number of tokens is neither.
    """
    if routes and all(number == SENTINEL for token in routes for layer in token for number in layer):
        return "sentinel"
    # The last generated token is never an input, so engines may leave its routes out.
    if len(routes) in (cum_len, cum_len - 1):
        return "full"
    if len(routes) in (delta_len, delta_len - 1):
        return "tail"
    raise ValueError(f"routes for {len(routes)} tokens cover neither {cum_len} nor {delta_len}")
