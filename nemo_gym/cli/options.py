"""A command's options: flags over keys of the configuration, checked together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from nemo_gym.cli import output
from nemo_gym.config.resolve import Request, Resolved, resolve
from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig
from nemo_gym.errors import GymError
from nemo_gym.global_config import GlobalConfigDictParserConfig, surroundings

OptionsT = TypeVar("OptionsT", bound=BaseNeMoGymCLIConfig)


class UsageError(GymError):
    """The command was called in a way that cannot be meant."""

    exit_status = 2


class FileProblem(GymError, OSError):
    """A file cannot be read or written."""


@contextmanager
def files_explained() -> Iterator[None]:
    """What the system says of a file, as one sentence with its name."""
    try:
        yield
    except GymError:
        raise
    except OSError as error:
        raise FileProblem(
            error.strerror or str(error), where=str(error.filename) if error.filename else None
        ) from error


def resolved_without_model(overrides: Sequence[str]) -> Resolved:
    """The configuration of a command that needs no model; a stand-in takes its place unless one is named."""
    stand_in = OmegaConf.to_container(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert isinstance(stand_in, dict)
    resolved = resolve(Request(overrides=list(overrides), initial=stand_in, offline=True), surroundings())
    for warning in resolved.warnings:
        output.talk(f"Warning: {warning}")
    return resolved


def options(
    kind: type[OptionsT], config: DictConfig, given: Mapping[str, tuple[str, Any]], *, command: str
) -> OptionsT:
    """The options of a command; `given` has, for each key, its flag and the flag's value (None: not given).

    Raises:
        UsageError: with everything that is missing or wrong, by flag and key.
    """
    keys = {key: config[key] for key in kind.model_fields if key in config}
    flags = {key: value for key, (_, value) in given.items() if value is not None}
    try:
        return kind.model_validate({**_plain(keys), **flags})
    except ValidationError as error:
        problems = [_told(problem, given) for problem in error.errors()]
        raise UsageError("; ".join(problems), where=command, fix=f"{command} --help") from None


def _plain(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for key, v in keys.items()}


def _told(problem: Any, given: Mapping[str, tuple[str, Any]]) -> str:
    key = ".".join(map(str, problem["loc"]))
    said = str(problem["msg"]).removeprefix("Value error, ")
    if not key:
        return said
    flag = given.get(key, (None, None))[0]
    name = f"{flag} (or +{key}=…)" if flag else f"+{key}=…"
    return f"{name} is missing" if problem["type"] == "missing" else f"{name}: {said}"
