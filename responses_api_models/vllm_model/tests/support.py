"""Replies in vLLM's form, and a model server for tests."""

from typing import Any
from unittest.mock import MagicMock

from nemo_gym.server_utils import ServerClient
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

USER = {"role": "user", "content": "hi"}


def completion(content: str | None = "four", finish: str = "stop", **message: Any) -> dict[str, Any]:
    body = {"role": "assistant", "content": content, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "message": body, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def logprobs(*pairs: tuple[str, float]) -> dict[str, Any]:
    return {
        "content": [{"token": token, "logprob": value, "bytes": None, "top_logprobs": []} for token, value in pairs]
    }


def model(url: str | list[str], **settings: Any) -> VLLMModel:
    fields: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 1,
        "entrypoint": "app.py",
        "name": "policy_model",
        "base_url": url,
        "api_key": "vllm-very-secret",
        "model": "small",
        "return_token_id_information": False,
        "uses_reasoning_parser": True,
    }
    config = VLLMModelConfig(**(fields | settings))
    return VLLMModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))
