"""Secret masking of a configuration that is about to be shown."""

from typing import Any

from nemo_gym.config.secrets import mask_in_place

__all__ = ["recursively_hide_secrets"]


def recursively_hide_secrets(dict_config: Any) -> None:
    """Mask every secret in place with `****`; a list of secrets keeps its length."""
    mask_in_place(dict_config)
