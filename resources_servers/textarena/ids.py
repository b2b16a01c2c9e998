"""The ids of TextArena, for `python -m nemo_gym.adapters.id_writer`."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def list_ids() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every id with the smallest number of players with which it starts, or the reason why it does not."""
    package = importlib.import_module("textarena")
    for name in sorted(importlib.import_module("textarena.envs.registration").ENV_REGISTRY):
        facts: dict[str, Any] = {}
        for players in (1, 2, 3, 4, 5, 6, 7, 8, 10, 15):
            try:
                with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                    env = package.make(name)
                    env.reset(num_players=players, seed=0)
                    env.get_observation()
                facts = {"players": players}
                break
            except (ValueError, AssertionError) as error:
                facts = facts or {"refused": _reason(error)}
            except Exception as error:  # the boundary: code of the package
                facts = {"refused": _reason(error)}
                break
        yield name, facts


def _reason(error: Exception) -> str:
    """Return why an environment does not start, in a line."""
    if isinstance(error, SyntaxError):
        return "its source needs Python 3.12"
    if isinstance(error, LookupError) and "NLTK" in str(error):
        return "needs a corpus of NLTK, which is downloaded at run time"
    line = next((line for line in str(error).splitlines() if line.strip(" *")), type(error).__name__)
    folder = str(Path(importlib.import_module("textarena").__file__ or "").parent)
    return line.replace(folder, "textarena")[:160]
