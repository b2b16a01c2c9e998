"""Public names of the Anthropic Messages types."""

from nemo_gym.wire.anthropic_messages import NeMoGymAnthropicMessage, NeMoGymAnthropicMessageCreateParamsNonStreaming

__all__ = ["NeMoGymAnthropicMessage", "NeMoGymAnthropicMessageCreateParamsNonStreaming"]
