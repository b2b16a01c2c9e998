"""Prompt templates under their public names."""

from nemo_gym.data.prompt import (
    PromptConfig,
    PromptError,
    PromptFieldError,
    apply_prompt_to_row,
    fill_prompt,
    load_prompt_config,
    validate_prompt_compatibility,
)
from nemo_gym.data.render import MaterializePromptsConfig, materialize_prompts

__all__ = [
    "MaterializePromptsConfig",
    "PromptConfig",
    "PromptError",
    "PromptFieldError",
    "apply_prompt_to_row",
    "fill_prompt",
    "load_prompt_config",
    "materialize_prompts",
    "validate_prompt_compatibility",
]
