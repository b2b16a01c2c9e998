"""Docker containers as sandboxes."""

from nemo_gym.sandbox.providers.docker.provider import DockerCreateConfig, DockerProvider

__all__ = ["DockerCreateConfig", "DockerProvider"]
