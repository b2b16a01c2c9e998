"""Length of texts in OpenAI tokens (o200k), counted without a network; needs the extra `data`."""

import importlib
from collections.abc import Callable
from functools import lru_cache

EXTRA_NOTE = "input lengths in tokens are left out: splintr-rs is not installed (pip install 'nemo-gym[data]')"

WIDTH = 4
"""Bytes of a token's number."""


@lru_cache(maxsize=1)
def token_counter() -> Callable[[str], int] | None:
    """A function from text to its number of tokens, or None where the tokenizer is not installed."""
    try:
        splintr = importlib.import_module("splintr")
    except ImportError:
        return None
    tokenizer = splintr.Tokenizer.from_pretrained("o200k_base")
    flat: Callable[[str], bytes] = tokenizer.encode_flat
    ordinary: Callable[[str], list[int]] = tokenizer.encode_ordinary

    def count(text: str) -> int:
        # "<|endoftext|>" in a prompt is text that somebody wrote, not one token; `flat`, quicker, takes it for one.
        return len(ordinary(text)) if "<|" in text else len(flat(text)) // WIDTH

    return count
