"""Boxes on this machine as sandboxes: no image, no daemon, no network."""

from nemo_gym.sandbox.providers.local.isolation import Isolation, probe
from nemo_gym.sandbox.providers.local.provider import LocalProvider

__all__ = ["Isolation", "LocalProvider", "probe"]
