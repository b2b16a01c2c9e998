"""Prompt templates under their public names."""

from nemo_gym.data.prompt import (
    MaterializePromptsConfig,
    PromptConfig,
    PromptError,
    PromptFieldError,
    apply_prompt_to_row,
    fill_prompt,
    load_prompt_config,
    materialize_prompts,
    validate_prompt_compatibility,
)

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
