"""Docker containers as sandboxes: `provider` has the class."""

from nemo_gym.sandbox.providers.docker.provider import DockerCreateConfig, DockerProvider

__all__ = ["DockerCreateConfig", "DockerProvider"]
