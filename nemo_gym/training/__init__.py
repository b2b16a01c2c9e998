"""Training: rollouts and samples that a trainer can learn from. Imports no torch.

- `types`: `Span`, `Sample` and `Rollout`, the neutral objects that every trainer adapter reads
- `samples`: build them from the token fields of a record
- `parity`: compare the engine's log-probs with the trainer's
- `files`: write and read them as JSON lines, Parquet or an Arrow table
- `advantages`: rewards relative to the group
- `adapters`: rollouts in the form that each trainer reads
- `export`: the command `gym dataset export --format samples`
"""

from nemo_gym.training.advantages import group_advantages
from nemo_gym.training.files import read_samples, samples_table, write_samples
from nemo_gym.training.parity import Parity, ParityError, check_parity
from nemo_gym.training.samples import BrokenPrompt, TokenFieldsError, rollout_of, samples_of
from nemo_gym.training.types import Rollout, Sample, Span

__all__ = [
    "BrokenPrompt",
    "Parity",
    "ParityError",
    "Rollout",
    "Sample",
    "Span",
    "TokenFieldsError",
    "check_parity",
    "group_advantages",
    "read_samples",
    "rollout_of",
    "samples_of",
    "samples_table",
    "write_samples",
]
