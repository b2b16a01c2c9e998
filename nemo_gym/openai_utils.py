# mypy: implicit-reexport
# ruff: noqa: F401, F403 - the public names of this module are those of the wire modules
"""Public names of the OpenAI wire types, and the client.

The client is loaded on first use: most servers need only the types, and it imports an HTTP stack.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nemo_gym.wire.base import REQUIRED_TOKEN_METADATA_FIELDS, TOKEN_METADATA_FIELDS, TokenIDLogProbMixin
from nemo_gym.wire.chat_completions import *
from nemo_gym.wire.hosted_tool_calls import *
from nemo_gym.wire.input_content import *
from nemo_gym.wire.responses import *
from nemo_gym.wire.responses_options import *
from nemo_gym.wire.token_usage import *

if TYPE_CHECKING:
    from nemo_gym.transport.model_client import (
        MAX_NUM_TRIES,
        RATE_LIMIT_ERROR_CODES,
        RETRY_ERROR_CODES,
        NeMoGymAsyncOpenAI,
    )

_CLIENT_NAMES = frozenset({"NeMoGymAsyncOpenAI", "MAX_NUM_TRIES", "RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES"})


def __getattr__(name: str) -> Any:
    if name not in _CLIENT_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("nemo_gym.transport.model_client"), name)
    globals()[name] = value
    return value
