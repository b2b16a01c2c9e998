"""Secret masking of a configuration that is about to be shown."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.config.secret_names import is_secret_name
from nemo_gym.config.secret_text import MASK
from nemo_gym.config.secrets import mask_in_place, mask_secrets

__all__ = ["MASKED_VALUE", "hide_secrets_in_overrides", "looks_like_secret_key", "recursively_hide_secrets"]

MASKED_VALUE = MASK
_SECRET_PARTS = ("token", "key", "header")


def recursively_hide_secrets(dict_config: Any) -> None:
    """Mask every secret in place with `****`; a list of secrets keeps its length."""
    mask_in_place(dict_config)


def looks_like_secret_key(name: str) -> bool:
    """Return whether a name may be that of a secret: it contains `token`, `key` or `header`, or is a secret name.

    This is wider than the rule that masks configurations, which shows `eos_token` and `subset_key`.
    """
    return is_secret_name(name) or any(part in name.lower() for part in _SECRET_PARTS)


def hide_secrets_in_overrides(overrides: Iterable[str]) -> list[str]:
    """Return overrides of the command line, such as `+policy_api_key=…`, with masked secrets."""
    masked: list[str] = mask_secrets(list(overrides))
    return masked
