"""`manifest.yaml`: the description of an environment or benchmark, for users and for programs that list them."""

from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nemo_gym.config.load import read_source
from nemo_gym.config.schema_servers import Domain
from nemo_gym.errors import ConfigError

Kind = Literal["environment", "benchmark"]
Profile = Literal["custom-gym-verifier", "custom-gym-agent-loop", "external-agent-loop", "external-rollout-driver"]
"""Who runs an episode: a Gym agent with a custom verifier, a custom agent, an external agent or an external driver."""
PROFILES: tuple[Profile, ...] = get_args(Profile)
FOLDERS: dict[Kind, str] = {"environment": "environments", "benchmark": "benchmarks"}
MANIFEST = "manifest.yaml"
DRIVER_PROFILE: Profile = "external-rollout-driver"


class _ManifestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class RewardScale(_ManifestModel):
    """The range of rewards, and which end of it is best."""

    range: tuple[float, float]
    """The lowest and the highest possible reward."""
    higher_is_better: bool = True

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.range[0] < self.range[1]:
            raise ValueError("range must be [lowest, highest]")
        return self

    @property
    def best(self) -> float:
        return self.range[1] if self.higher_is_better else self.range[0]


class ManifestDataset(_ManifestModel):
    """One dataset of the agent, as in the configuration."""

    name: str
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: str
    prepare_script: str | None = None
    prompt_config: str | None = None
    num_repeats: int = Field(default=1, ge=1)


class AdoptedFrom(_ManifestModel):
    """The origin of an environment that was adopted from another project."""

    source: str
    ref: str
    reconciled: bool = False


class EnvironmentManifest(_ManifestModel):
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
    reward: RewardScale
    determinism: Literal["seeded", "stochastic", "unknown"] = "unknown"
    resources_server: str | None = None
    """Name of the resources server folder that verifies the environment's rollouts."""
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
    def _check_duplicate_authors(cls, authors: list[str]) -> list[str]:
        if len(set(authors)) != len(authors):
            raise ValueError("an author is listed twice")
        return authors

    @model_validator(mode="after")
    def _check_profile(self) -> Self:
        """Require the fields that the profile and the kind need."""
        missing = []
        if self.integration_profile == "custom-gym-agent-loop" and not self.model_server:
            missing.append("model_server")
        if self.integration_profile == DRIVER_PROFILE and not self.rollout_driver:
            missing.append("rollout_driver")
        if self.kind == "benchmark":
            missing += [key for key in ("canonical_split", "standard_prompt_config") if not getattr(self, key)]
            if not any(dataset.type == "benchmark" for dataset in self.datasets):
                missing.append("a dataset of type benchmark")
        if missing:
            raise ValueError(f"a {self.kind} with profile {self.integration_profile} also needs {', '.join(missing)}")
        if self.rollout_driver and self.integration_profile != DRIVER_PROFILE:
            raise ValueError(f"rollout_driver belongs to the profile {DRIVER_PROFILE}")
        return self

    def written_fields(self) -> dict[str, Any]:
        """Return the fields that the file contains, as JSON values."""
        return self.model_dump(mode="json", exclude_none=True, exclude_unset=True)


class NoManifest(ConfigError, LookupError):
    """No root has a manifest of this name."""

    exit_status = 2


def read_manifest(path: Path) -> EnvironmentManifest:
    """Read the manifest at `path`.

    Raises:
        ConfigError: the file cannot be read or has invalid fields; the message lists every problem.
    """
    source = read_source(path)
    try:
        return EnvironmentManifest.model_validate(source.tree)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, p['loc'])) or 'manifest'}: {p['msg'].removeprefix('Value error, ')}"
            for p in error.errors()
        ]
        raise ConfigError("; ".join(problems), where=source.name) from None


def find_manifest(name: str, kind: Kind | None, roots: list[Path]) -> tuple[Path, EnvironmentManifest]:
    """Find the manifest of the environment or benchmark called `name` in the first root that has it.

    Raises:
        NoManifest: no root has such a manifest.
        ConfigError: `name` is both an environment and a benchmark, or the file has another name or kind.
    """
    kinds: list[Kind] = [kind] if kind else list(FOLDERS)
    paths: dict[Kind, Path] = {}
    for root in roots:
        for candidate in kinds:
            path = root / FOLDERS[candidate] / name / MANIFEST
            if path.is_file():
                paths.setdefault(candidate, path)
    if len(paths) > 1:
        raise ConfigError(f"'{name}' is an environment and a benchmark", where=name, fix="add --kind")
    if not paths:
        files = ", ".join(f"{FOLDERS[kind]}/{name}/{MANIFEST}" for kind in kinds)
        manifests = [path for root in roots for kind in kinds for path in root.glob(f"{FOLDERS[kind]}/*/{MANIFEST}")]
        names = sorted({path.parent.name for path in manifests})
        fix = f"one of {', '.join(names)}" if names else f"gym env init --environment {name}"
        raise NoManifest(f"{files} not found in {', '.join(map(str, roots))}", where=name, fix=fix)
    ((found_kind, path),) = paths.items()
    manifest = read_manifest(path)
    if (manifest.name, manifest.kind) != (name, found_kind):
        problem = f"describes the {manifest.kind} '{manifest.name}', but is in the folder of the {found_kind} '{name}'"
        raise ConfigError(problem, where=str(path))
    return path, manifest
