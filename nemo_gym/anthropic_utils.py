"""The Anthropic Messages types under their public names."""

from nemo_gym.wire.messages import NeMoGymAnthropicMessage, NeMoGymAnthropicMessageCreateParamsNonStreaming

__all__ = ["NeMoGymAnthropicMessage", "NeMoGymAnthropicMessageCreateParamsNonStreaming"]
