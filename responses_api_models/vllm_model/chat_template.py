"""Render prompts with the chat template of a local tokenizer."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from nemo_gym.errors import ConfigError

Json = dict[str, Any]
Render = Callable[[Json], list[int]]
"""Function from a chat request to the token ids of its prompt."""


def local_render(tokenizer: str, where: str) -> Render:
    """Return a function that renders with a tokenizer of the `transformers` package, loaded on first use.

    Raises:
        ConfigError: the package is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"tokenizer {tokenizer!r} needs the package transformers, which is not installed",
            where=where,
            fix="pip install transformers, or leave `tokenizer` out to render with the endpoint's /tokenize",
        )
    loaded: list[Any] = []

    def render(request: Json) -> list[int]:
        if not loaded:
            transformers = importlib.import_module("transformers")  # takes seconds, so only on first use
            loaded.append(transformers.AutoTokenizer.from_pretrained(tokenizer))
        ids = loaded[0].apply_chat_template(
            request["messages"],
            tools=request.get("tools"),
            tokenize=True,
            return_dict=False,
            **{"add_generation_prompt": True, **(request.get("chat_template_kwargs") or {})},
        )
        return [int(token) for token in ids]

    return render
