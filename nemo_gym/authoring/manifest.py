"""`manifest.yaml`: the description of an environment or benchmark, for users and for programs that list them."""

from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
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
OTHER_LICENCES = ("internal", "proprietary", "unknown")


class _ManifestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class RewardScale(_ManifestModel):
    """The range of rewards, and which end of it is best."""

    range: tuple[float, float]
    """The lowest and the highest possible reward."""
    higher_is_better: bool = True

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.range[0] <= self.range[1]:
            raise ValueError("range must be [lowest, highest]")
        return self

    @property
    def best(self) -> float:
        return self.range[1] if self.higher_is_better else self.range[0]


class ManifestDataset(_ManifestModel):
    """One dataset of the environment, as in the configuration."""

    model_config = ConfigDict(extra="allow")

    name: str
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: str
    prepare_script: str | None = None
    prompt_config: str | None = None
    num_repeats: int = Field(default=1, ge=1)


class AdoptedFrom(_ManifestModel):
    """The origin of an environment that was adopted from another project."""

    source: str
    ref: str | None = None
    reconciled: bool | str | None = None


class EnvironmentManifest(_ManifestModel):
    """The contents of a `manifest.yaml`."""

    name: str = Field(min_length=1)
    version: str = Field(min_length=1)
    kind: Kind
    integration_profile: Profile = "custom-gym-verifier"
    domain: Domain
    description: str
    modality: str | list[str] = "text"
    licensing: str = "unknown"
    """An SPDX expression, or internal, proprietary, unknown."""
    authors: list[Any] = Field(min_length=1)
    """Names, or objects with a name."""
    experimental: bool = True
    reward: RewardScale
    determinism: Literal["seeded", "stochastic", "unknown"] = "unknown"
    resources_server: str | None = None
    """Name of the resources server folder that verifies the environment's rollouts; null if an agent owns the task."""
    config_path: str = "config.yaml"
    """The configuration, relative to the manifest."""
    dataset_owner: str | None = None
    """The instance whose datasets the manifest describes, if several have some."""
    prompt_source: Literal["template", "prepared", "agent"] = "template"
    """Who makes the prompts: a prompt template, the prepare script or the agent."""
    agent_server: str | None = None
    model_server: str | None = None
    datasets: list[ManifestDataset] = Field(default_factory=list)
    rollout_driver: str | None = None
    grading_mode: Any = None
    session_model: Any = None
    state: Any = None
    sandbox: Any = None
    canonical_split: str | None = None
    standard_prompt_config: str | None = None
    adopted_from: AdoptedFrom | None = None
    lifecycle: Literal["active", "deprecated"] = "active"

    @field_validator("authors")
    @classmethod
    def _check_duplicate_authors(cls, authors: list[Any]) -> list[Any]:
        if any(author in authors[:index] for index, author in enumerate(authors)):
            raise ValueError("an author is listed twice")
        return authors

    @field_validator("datasets")
    @classmethod
    def _check_duplicate_datasets(cls, datasets: list[ManifestDataset]) -> list[ManifestDataset]:
        names = [dataset.name for dataset in datasets]
        if len(set(names)) != len(names):
            raise ValueError("two datasets have the same name")
        return datasets

    @field_validator("licensing")
    @classmethod
    def _normalize_licence(cls, licence: str) -> str:
        """Return an SPDX expression in its canonical case; the words for other licences in lower case."""
        if licence.lower() in OTHER_LICENCES:
            return licence.lower()
        try:
            return canonicalize_license_expression(licence)
        except InvalidLicenseExpression:
            raise ValueError(f"{licence!r} is neither an SPDX expression nor {', '.join(OTHER_LICENCES)}") from None

    @model_validator(mode="after")
    def _check_profile(self) -> Self:
        """Require the fields that the profile, the kind and the source of the prompts need."""
        missing = []
        if self.integration_profile == "custom-gym-agent-loop" and not self.model_server:
            missing.append("model_server")
        if self.integration_profile == "custom-gym-verifier" and not self.resources_server:
            missing.append("resources_server")
        if self.integration_profile == DRIVER_PROFILE and not self.rollout_driver:
            missing.append("rollout_driver")
        if self.kind == "benchmark":
            missing += [] if self.canonical_split else ["canonical_split"]
            needs_prompt = self.prompt_source == "template"
            missing += ["standard_prompt_config"] if needs_prompt and not self.standard_prompt_config else []
            if not any(dataset.type == "benchmark" for dataset in self.datasets):
                missing.append("a dataset of type benchmark")
        if missing:
            raise ValueError(f"a {self.kind} with profile {self.integration_profile} also needs {', '.join(missing)}")
        if self.rollout_driver and self.integration_profile != DRIVER_PROFILE:
            raise ValueError(f"rollout_driver belongs to the profile {DRIVER_PROFILE}")
        if self.prompt_source == "prepared" and self.standard_prompt_config:
            raise ValueError("standard_prompt_config contradicts prompt_source: prepared")
        if self.prompt_source != "template" and any(dataset.prompt_config for dataset in self.datasets):
            raise ValueError(f"prompt_config of a dataset contradicts prompt_source: {self.prompt_source}")
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


def resolve_manifest_config_path(path: Path, manifest: EnvironmentManifest) -> Path:
    """Return the path of the configuration of a manifest.

    Raises:
        ConfigError: the path is absolute, or leads out of the tree `environments/` or `benchmarks/` of the manifest.
    """
    tree = next((parent for parent in path.absolute().parents if parent.name in FOLDERS.values()), path.parent)
    config = path.parent / manifest.config_path
    if Path(manifest.config_path).is_absolute() or not config.resolve().is_relative_to(tree.resolve()):
        raise ConfigError(f"config_path {manifest.config_path!r} must stay inside {tree.name}/", where=str(path))
    return config


def dump_manifest(manifest: EnvironmentManifest) -> str:
    """Return the text of a manifest file; defaults of the newest fields are left out."""
    fields = manifest.model_dump(mode="json", exclude_none=True)
    fields["resources_server"] = manifest.resources_server  # the key is required, also without a server
    for name, default in (("config_path", "config.yaml"), ("prompt_source", "template")):
        if fields[name] == default:
            del fields[name]
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def manifest_json_schema() -> dict[str, Any]:
    return EnvironmentManifest.model_json_schema()


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
