"""Hiding secrets in a configuration that is about to be shown."""

from typing import Any

from nemo_gym.config.secrets import hide_in_place

__all__ = ["recursively_hide_secrets"]


def recursively_hide_secrets(dict_config: Any) -> None:
    """Replace every secret in place by `****`; a list of secrets keeps its length."""
    hide_in_place(dict_config)
