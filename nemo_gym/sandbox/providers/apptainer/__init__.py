"""Apptainer instances as sandboxes: `provider` has the class."""

from nemo_gym.sandbox.providers.apptainer import provider
from nemo_gym.sandbox.providers.apptainer.provider import ApptainerProvider

__all__ = ["ApptainerProvider", "provider"]
