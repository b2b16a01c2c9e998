"""Offer the honest judge of each folder's audit to the scripted model as `tools.example_judges:<folder>`."""

import importlib
from typing import Any

from nemo_gym.authoring.model_replies import prompt_texts


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    judge = importlib.import_module(f"resources_servers.{name}.audit").judge
    return lambda scene: judge("\n\n".join(prompt_texts(scene.conversation)))
