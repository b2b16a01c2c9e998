"""Component names as people type them (`arithmetic`, `vllm_model/local`) and the configuration files they mean."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nemo_gym.catalog.roots import renamed
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)


class UnknownName(ConfigError, ValueError):
    """Nothing has the name that was given on the command line."""

    exit_status = 2


@dataclass(frozen=True)
class Shelf:
    """One kind of component: the folder it lives in and where its configuration files are kept."""

    flag: str
    folder: str
    configs: str = ""
    default: str | None = None

    def candidates(self, value: str) -> list[Path]:
        """Relative paths that `value` may mean, most specific first."""
        name, _, flavour = value.partition("/")
        stem = flavour or self.default or name
        found = [Path(self.folder, name, self.configs, f"{stem}.yaml")]
        if flavour and self.default:
            found.insert(0, Path(self.folder, value, f"{self.default}.yaml"))
        return found

    def names(self, roots: Sequence[Path]) -> list[str]:
        """Every name that would be found, flavours included, sorted."""
        found: set[str] = set()
        for root in roots:
            for path in (root / self.folder).glob(f"*/{self.configs or '.'}/*.yaml"):
                name = path.relative_to(root / self.folder).parts[0]
                found.add(name if path.stem in (self.default, name) else f"{name}/{path.stem}")
        return sorted(found)


BENCHMARK = Shelf("--benchmark", "benchmarks", default="config")
ENVIRONMENT = Shelf("--environment", "environments", default="config")
RESOURCES_SERVER = Shelf("--resources-server", "resources_servers", configs="configs")
MODEL_TYPE = Shelf("--model-type", "responses_api_models", configs="configs")
SHELVES = (BENCHMARK, ENVIRONMENT, RESOURCES_SERVER, MODEL_TYPE)


def _first_file(candidates: Sequence[Path], roots: Sequence[Path]) -> Path | None:
    found = [root / relative for relative in candidates for root in roots if (root / relative).is_file()]
    different = list(dict.fromkeys(path.resolve() for path in found))
    if len(different) > 1:
        logger.warning("using %s; not used: %s", different[0], ", ".join(map(str, different[1:])))
    return different[0] if different else None


def config_file(shelf: Shelf, value: str, roots: Sequence[Path]) -> Path:
    """The absolute path of the configuration `value` names; the first root that has it wins.

    Raises:
        UnknownName: no root has it; the message names the nearest that exists and where was searched.
    """
    asked = shelf.candidates(value)
    found = _first_file(asked, roots) or _first_file([now for path in asked if (now := renamed(path))], roots)
    if found is not None:
        return found
    known = shelf.names(roots)
    close = get_close_matches(value, known, n=1)
    searched = ", ".join(str(root) for root in roots)
    raise UnknownName(
        f"nothing is called '{value}': no {asked[0]} in {searched}",
        where=shelf.flag,
        fix=close[0] if close else (f"one of {', '.join(known)}" if known else "name an existing configuration"),
    )
