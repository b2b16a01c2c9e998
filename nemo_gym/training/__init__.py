"""Training: rollouts and samples that a trainer can learn from. Imports no torch.

- `types`: `Span`, `Sample` and `Rollout`, the neutral objects that every trainer adapter reads
- `samples`: build them from the token fields of a record
- `parity`: compare the engine's log-probs with the trainer's
- `files`: write and read them as JSON lines, Parquet or an Arrow table
- `advantages`: rewards relative to the group
- `sessions`: start or connect to servers; `stream`, `groups`: rollouts as they end, groups; `sync`: without a loop
- `policy`: the engine of the model that is trained; `admission`: pauses and the staleness bound
- `gates`: what must hold in every step; `chat_tokens`: prompts that keep the ids of earlier turns
- with torch: `torch_policy`, `torch_engine`: serve the model from the trainer's process; `grpo`; `demo`, `demo_files`,
  `tiny_model`: `gym train demo`; `tiny_model_hf`: its task for `transformers`
- `adapters`: rollouts in the form that each trainer reads
- `export`: the command `gym dataset export --format samples`
"""

from typing import TYPE_CHECKING, Any

from nemo_gym.training.advantages import group_advantages
from nemo_gym.training.files import read_samples, samples_table, write_samples
from nemo_gym.training.parity import Parity, ParityError, check_parity
from nemo_gym.training.samples import BrokenPrompt, TokenFieldsError, rollout_of, samples_of
from nemo_gym.training.types import Rollout, Sample, Span

if TYPE_CHECKING:
    from nemo_gym.training.groups import Group
    from nemo_gym.training.policy import Policy
    from nemo_gym.training.sessions import Gym, session
    from nemo_gym.training.sync import SyncGym, sync_session
    from nemo_gym.training.torch_policy import TorchPolicy, serve_policy

_LOADED_ON_USE = {
    "Group": "groups",
    "Gym": "sessions",
    "Policy": "policy",
    "SyncGym": "sync",
    "TorchPolicy": "torch_policy",
    "serve_policy": "torch_policy",
    "session": "sessions",
    "sync_session": "sync",
}
"""Names by module; these modules import the launcher or torch, which readers of samples do not need."""

__all__ = [
    "BrokenPrompt",
    "Group",
    "Gym",
    "Parity",
    "ParityError",
    "Policy",
    "Rollout",
    "Sample",
    "Span",
    "SyncGym",
    "TokenFieldsError",
    "TorchPolicy",
    "check_parity",
    "group_advantages",
    "read_samples",
    "rollout_of",
    "samples_of",
    "samples_table",
    "serve_policy",
    "session",
    "sync_session",
    "write_samples",
]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LOADED_ON_USE[name]}"), name)
