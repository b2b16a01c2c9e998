"""`manifest.yaml`: what an environment or benchmark is, for people who choose one and programs that list them."""

from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nemo_gym.config.load import read_source
from nemo_gym.config.schema_servers import Domain
from nemo_gym.errors import ConfigError

Kind = Literal["environment", "benchmark"]
Profile = Literal["custom-gym-verifier", "custom-gym-agent-loop", "external-agent-loop", "external-rollout-driver"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
FOLDERS: dict[Kind, str] = {"environment": "environments", "benchmark": "benchmarks"}
MANIFEST = "manifest.yaml"
DRIVEN: Profile = "external-rollout-driver"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Reward(_Strict):
    """What rewards mean here."""

    range: tuple[float, float]
    """The lowest and the highest reward there is."""
    higher_is_better: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.range[0] < self.range[1]:
            raise ValueError("range must be [lowest, highest]")
        return self

    @property
    def best(self) -> float:
        return self.range[1] if self.higher_is_better else self.range[0]


class ManifestDataset(_Strict):
    """One dataset of the agent, as the configuration has it."""

    name: str
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: str
    prepare_script: str | None = None
    prompt_config: str | None = None
    num_repeats: int = Field(default=1, ge=1)


class AdoptedFrom(_Strict):
    """Where an environment that was not written here comes from."""

    source: str
    ref: str
    reconciled: bool = False


class EnvironmentManifest(_Strict):
    """The contents of a `manifest.yaml`."""

    name: str
    version: str
    kind: Kind
    integration_profile: Profile = "custom-gym-verifier"
    domain: Domain
    description: str
    modality: str = "text"
    licensing: str = "unknown"
    """An SPDX name, or internal, proprietary, unknown."""
    authors: list[str] = Field(min_length=1)
    reward: Reward
    determinism: Literal["seeded", "stochastic", "unknown"] = "unknown"
    resources_server: str | None = None
    """The implementation folder of its verifier."""
    agent_server: str | None = None
    model_server: str | None = None
    datasets: list[ManifestDataset] = Field(default_factory=list)
    rollout_driver: str | None = None
    grading_mode: str | None = None
    session_model: str | None = None
    state: str | None = None
    sandbox: str | None = None
    canonical_split: str | None = None
    standard_prompt_config: str | None = None
    adopted_from: AdoptedFrom | None = None
    lifecycle: Literal["active", "deprecated"] = "active"

    @field_validator("authors")
    @classmethod
    def _each_once(cls, authors: list[str]) -> list[str]:
        if len(set(authors)) != len(authors):
            raise ValueError("an author is named twice")
        return authors

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Each profile and kind needs what it is about."""
        missing = []
        if self.integration_profile == "custom-gym-agent-loop" and not self.model_server:
            missing.append("model_server")
        if self.integration_profile == DRIVEN and not self.rollout_driver:
            missing.append("rollout_driver")
        if self.kind == "benchmark":
            missing += [key for key in ("canonical_split", "standard_prompt_config") if not getattr(self, key)]
            if not any(dataset.type == "benchmark" for dataset in self.datasets):
                missing.append("a dataset of type benchmark")
        if missing:
            raise ValueError(f"a {self.kind} with profile {self.integration_profile} also needs {', '.join(missing)}")
        if self.rollout_driver and self.integration_profile != DRIVEN:
            raise ValueError(f"rollout_driver belongs to the profile {DRIVEN}")
        return self


def read_manifest(path: Path) -> EnvironmentManifest:
    """The manifest at `path`.

    Raises:
        ConfigError: it cannot be read, or does not fit; with every problem.
    """
    source = read_source(path)
    try:
        return EnvironmentManifest.model_validate(source.tree)
    except ValidationError as error:
        found = [
            f"{'.'.join(map(str, p['loc'])) or 'manifest'}: {p['msg'].removeprefix('Value error, ')}"
            for p in error.errors()
        ]
        raise ConfigError("; ".join(found), where=source.name) from None


def find_manifest(name: str, kind: Kind | None, roots: list[Path]) -> tuple[Path, EnvironmentManifest]:
    """The manifest of the environment or benchmark called `name`; the first root that has it wins.

    Raises:
        ConfigError: there is none, or one of each kind and none was chosen, or it is about something else.
    """
    kinds: list[Kind] = [kind] if kind else list(FOLDERS)
    found: dict[Kind, Path] = {}
    for root in roots:
        for one in kinds:
            path = root / FOLDERS[one] / name / MANIFEST
            if path.is_file():
                found.setdefault(one, path)
    if len(found) > 1:
        raise ConfigError(f"'{name}' is an environment and a benchmark", where=name, fix="add --kind")
    if not found:
        raise NoManifest(_none(name, kinds, roots), where=name, fix=_fix(name, kinds, roots))
    ((chosen, path),) = found.items()
    manifest = read_manifest(path)
    if (manifest.name, manifest.kind) != (name, chosen):
        raise ConfigError(
            f"says it is the {manifest.kind} '{manifest.name}', but lies where the {chosen} '{name}' belongs",
            where=str(path),
        )
    return path, manifest


class NoManifest(ConfigError, LookupError):
    """Nothing of that name describes itself."""

    exit_status = 2


def _none(name: str, kinds: list[Kind], roots: list[Path]) -> str:
    places = ", ".join(f"{FOLDERS[kind]}/{name}/{MANIFEST}" for kind in kinds)
    return f"there is no {places} in {', '.join(map(str, roots))}"


def _fix(name: str, kinds: list[Kind], roots: list[Path]) -> str:
    known = {
        path.parent.name for root in roots for kind in kinds for path in root.glob(f"{FOLDERS[kind]}/*/{MANIFEST}")
    }
    return f"one of {', '.join(sorted(known))}" if known else f"gym env init --environment {name}"


def plain(manifest: EnvironmentManifest) -> dict[str, Any]:
    """The manifest as it is written: only what somebody said."""
    return manifest.model_dump(mode="json", exclude_none=True, exclude_unset=True)
