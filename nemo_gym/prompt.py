"""Prompt templates: the public names of `nemo_gym.data.prompt`."""

from nemo_gym.data.prompt import MaterializePromptsConfig as MaterializePromptsConfig
from nemo_gym.data.prompt import PromptConfig as PromptConfig
from nemo_gym.data.prompt import PromptError as PromptError
from nemo_gym.data.prompt import PromptFieldError as PromptFieldError
from nemo_gym.data.prompt import apply_prompt_to_row as apply_prompt_to_row
from nemo_gym.data.prompt import fill_prompt as fill_prompt
from nemo_gym.data.prompt import load_prompt_config as load_prompt_config
from nemo_gym.data.prompt import materialize_prompts as materialize_prompts
from nemo_gym.data.prompt import validate_prompt_compatibility as validate_prompt_compatibility
