"""What a server's own config class says of its block, before anything is started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.config.check import check_server_block
from nemo_gym.config.problems import Problem, raise_all
from nemo_gym.config.resolve import Resolved
from nemo_gym.launch.glance import surely_fits
from nemo_gym.launch.instances import instances

STAND_IN_MODEL = "dummy_model"


def check_server_blocks(resolved: Resolved, roots: Sequence[Path]) -> list[str]:
    """Check the blocks of servers that share our process; return what their writers should know.

    A server with a process of its own is not imported here, because its module may do anything; it checks its block
    when it starts.

    Raises:
        ConfigError: with every problem found and the place it was written at.
    """
    plain = OmegaConf.to_container(resolved.config, resolve=True)
    assert isinstance(plain, dict)
    known = {instance.name: instance for instance in resolved.instances.valid}
    problems: list[Problem] = []
    blocks = {str(key): value for key, value in plain.items() if not _is_stand_in(value)}
    for instance in instances(blocks, roots):
        if instance.hosting != "cell" or instance.name not in known:
            continue
        block = plain[instance.name][instance.kind][instance.implementation]
        if surely_fits(instance.folder / instance.entrypoint, block):
            continue
        from nemo_gym.launch.cell import imported, server_class  # all of a server's imports: only when in doubt

        declared = server_class(imported(instance)).model_fields["config"].annotation
        if isinstance(declared, type):
            problems += check_server_block(known[instance.name], block, declared)
    located = resolved.positions.located(problems)
    raise_all(located)
    return [str(problem) for problem in located]


def _is_stand_in(block: Any) -> bool:
    """Whether a block is the model that takes the place of one nobody named (`gym env validate`)."""
    return isinstance(block, dict) and list(block.get("responses_api_models", ())) == [STAND_IN_MODEL]
