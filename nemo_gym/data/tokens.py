"""Length of texts in OpenAI tokens (o200k), counted without a network; needs the extra `data`."""

import importlib
from collections.abc import Callable
from functools import lru_cache

EXTRA_NOTE = "input lengths in tokens are left out: rs-bpe is not installed (pip install 'nemo-gym[data]')"


@lru_cache(maxsize=1)
def token_counter() -> Callable[[str], int] | None:
    """A function from text to its number of tokens, or None where the tokenizer is not installed."""
    try:
        openai = importlib.import_module("rs_bpe").openai
    except ImportError:
        return None
    count: Callable[[str], int] = openai.o200k_base().count
    return count
