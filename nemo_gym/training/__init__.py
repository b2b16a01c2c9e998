"""Training: rollouts and samples that a trainer can learn from. Imports no torch.

- `types`: `Span`, `Sample` and `Rollout`, the neutral objects that every trainer adapter reads
"""

from nemo_gym.training.types import Rollout, Sample, Span

__all__ = ["Rollout", "Sample", "Span"]
