"""Find the configuration file of a component name on the command line (`arithmetic`, `vllm_model/local`)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nemo_gym.config.search_roots import follow_rename, is_second_name
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)


class UnknownName(ConfigError, ValueError):
    """No component has the name given on the command line."""

    exit_status = 2


@dataclass(frozen=True)
class ComponentKind:
    """One kind of component: its flag, its folder, and the location of its configuration files.

    `configs` is the subfolder of the configuration files; `default` is the stem of the main configuration file, if that
    is not the name of the component.
    """

    flag: str
    folder: str
    configs: str = ""
    default: str | None = None

    def candidates(self, value: str) -> list[Path]:
        """Return the relative paths of the configuration files that `value` may refer to, by precedence."""
        name, _, variant = value.partition("/")
        stem = variant or self.default or name
        in_folder = Path(self.folder, name, self.configs, f"{stem}.yaml")
        in_subfolder = Path(self.folder, value, f"{self.default}.yaml")
        return [in_subfolder, in_folder] if variant and self.default else [in_folder]

    def names(self, roots: Sequence[Path]) -> list[str]:
        """Return the names of the components and of their variants, sorted; components in subfolders are left out."""
        names: set[str] = set()
        for root in roots:
            for path in (root / self.folder).glob(f"*/{self.configs or '.'}/*.yaml"):
                name = path.relative_to(root / self.folder).parts[0]
                if is_second_name(root / self.folder / name) or path.name == "manifest.yaml":
                    continue
                names.add(name if path.stem in (self.default, name) else f"{name}/{path.stem}")
        return sorted(names)


BENCHMARK = ComponentKind("--benchmark", "benchmarks", default="config")
ENVIRONMENT = ComponentKind("--environment", "environments", default="config")
RESOURCES_SERVER = ComponentKind("--resources-server", "resources_servers", configs="configs")
MODEL_TYPE = ComponentKind("--model-type", "responses_api_models", configs="configs")


def config_file(kind: ComponentKind, value: str, roots: Sequence[Path]) -> Path:
    """Return the absolute path of the configuration file of the component `value`; an earlier root has precedence.

    Raises:
        UnknownName: no root has the component; the message contains the closest name and the searched roots.
    """
    candidates = [path for kind_of_name, name in _listed_as(kind, value) for path in kind_of_name.candidates(name)]
    path = _first_file(candidates, roots)
    if path is None:
        path = _first_file([new for candidate in candidates if (new := follow_rename(candidate))], roots)
    if path is not None:
        return path
    raise _unknown_name(kind, value, candidates[0], roots)


def _listed_as(kind: ComponentKind, value: str) -> list[tuple[ComponentKind, str]]:
    """Return the kinds and names that a value may mean: `gym list environments` shows components of three kinds."""
    if kind is not ENVIRONMENT:
        return [(kind, value)]
    folder, _, name = value.partition("/")
    servers = [(RESOURCES_SERVER, name)] if folder == RESOURCES_SERVER.folder and name else []
    return [(ENVIRONMENT, value), *servers, (BENCHMARK, value)]


def _unknown_name(kind: ComponentKind, value: str, path: Path, roots: Sequence[Path]) -> UnknownName:
    names = kind.names(roots)
    close = get_close_matches(value, names, n=1)
    fix = close[0] if close else (f"one of {', '.join(names)}" if names else "use an existing configuration")
    if kind is ENVIRONMENT:
        servers = RESOURCES_SERVER.names(roots)
        if value in servers:
            fix = f"--environment {RESOURCES_SERVER.folder}/{value}, or --resources-server {value}"
        elif not close:
            close = get_close_matches(value.removeprefix(f"{RESOURCES_SERVER.folder}/"), servers, n=1)
            fix = f"{RESOURCES_SERVER.folder}/{close[0]}" if close else f"{fix}; `gym list environments` shows all"
    searched = ", ".join(str(root) for root in roots)
    return UnknownName(f"unknown name '{value}': no {path} in {searched}", where=kind.flag, fix=fix)


def _first_file(candidates: Sequence[Path], roots: Sequence[Path]) -> Path | None:
    """Return the first existing file; warn if several different ones exist."""
    files = [root / relative for relative in candidates for root in roots if (root / relative).is_file()]
    distinct = list(dict.fromkeys(path.resolve() for path in files))
    if len(distinct) > 1:
        logger.warning("using %s; not used: %s", distinct[0], ", ".join(map(str, distinct[1:])))
    return distinct[0] if distinct else None
