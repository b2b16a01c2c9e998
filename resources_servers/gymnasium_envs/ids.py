"""The ids of gymnasium, for `python -m nemo_gym.adapters.id_writer`."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

from resources_servers.gymnasium_envs.episode import make_environment
from resources_servers.gymnasium_envs.texts import MAX_NUMBERS, observation_text


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every id, with the reason why it cannot be run as text if there is one."""
    for name in importlib.import_module("gymnasium").registry:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield name, _facts(name)


def _facts(name: str) -> dict[str, Any]:
    try:
        env = make_environment(name, {})
    except Exception as error:  # the boundary: code of the package
        return {"refused": (str(error).splitlines() or [type(error).__name__])[0][:160]}
    spaces = importlib.import_module("gymnasium").spaces
    if not isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return {"refused": f"its actions are not discrete: {env.action_space}"[:160]}
    observation, _ = env.reset(seed=0)
    if getattr(observation, "size", 1) > MAX_NUMBERS:
        return {"refused": f"its observation is an image or has more than {MAX_NUMBERS} numbers"}
    observation_text(env, observation)
    return {}
