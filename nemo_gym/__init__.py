"""NeMo Gym: evaluate LLM agents and generate rollouts for reinforcement learning.

Importing the package is cheap: every public class is loaded on first use.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from nemo_gym.config.search_roots import CACHE_DIR as CACHE_DIR
from nemo_gym.config.search_roots import NEMO_GYM_EXTRA_ROOTS_ENV_VAR_NAME as NEMO_GYM_EXTRA_ROOTS_ENV_VAR_NAME
from nemo_gym.config.search_roots import PARENT_DIR as PARENT_DIR
from nemo_gym.config.search_roots import RESULTS_DIR as RESULTS_DIR
from nemo_gym.config.search_roots import ROOT_DIR as ROOT_DIR
from nemo_gym.config.search_roots import WORKING_DIR as WORKING_DIR
from nemo_gym.config.search_roots import _augment_sys_path as _augment_sys_path
from nemo_gym.config.search_roots import _resolve_under_cwd_or_install as _resolve_under_cwd_or_install
from nemo_gym.config.search_roots import component_search_roots as component_search_roots

__package_name__ = "nemo_gym"

_LAZY_EXPORTS: dict[str, str] = {
    name: module
    for module, names in {
        "base_resources_server": (
            "BaseResourcesServerConfig",
            "SimpleResourcesServer",
            "BaseRunRequest",
            "BaseVerifyRequest",
            "BaseVerifyResponse",
            "BaseMultiRewardVerifyResponse",
            "BaseSeedSessionRequest",
            "BaseSeedSessionResponse",
            "ReverifyMode",
        ),
        "base_responses_api_agent": ("BaseResponsesAPIAgentConfig", "SimpleResponsesAPIAgent"),
        "base_responses_api_model": ("BaseResponsesAPIModelConfig", "SimpleResponsesAPIModel"),
        "server_utils": ("ServerClient", "raise_for_status", "get_response_json", "SESSION_ID_KEY"),
        "config_types": (
            "BaseServerConfig",
            "BaseRunServerInstanceConfig",
            "Domain",
            "AggregateMetrics",
            "AggregateMetricsRequest",
            "ModelServerRef",
        ),
        "evaluation": ("evaluate", "evaluate_async", "EvaluationFailed", "EvaluationResult"),
        "openai_utils": (
            "NeMoGymAsyncOpenAI",
            "NeMoGymResponse",
            "NeMoGymResponseCreateParamsNonStreaming",
            "NeMoGymChatCompletion",
            "NeMoGymChatCompletionCreateParamsNonStreaming",
        ),
    }.items()
    for name in names
}

__all__ = [  # noqa: PLE0604 - a list of names, most of them loaded lazily
    *sorted(
        (
            *_LAZY_EXPORTS,
            "CACHE_DIR",
            "PARENT_DIR",
            "RESULTS_DIR",
            "ROOT_DIR",
            "WORKING_DIR",
            "__package_name__",
            "__version__",
        )
    )
]

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_augment_sys_path()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("importlib.metadata").version("nemo-gym")
    elif name in _LAZY_EXPORTS:
        value = getattr(importlib.import_module(f"nemo_gym.{_LAZY_EXPORTS[name]}"), name)
    else:
        raise AttributeError(f"module 'nemo_gym' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
