"""Schema of datasets: files, licences and sources, and the configuration of the commands that move them."""

import warnings
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig

DatasetType: TypeAlias = Literal["train", "validation", "example"]
Split: TypeAlias = Literal["train", "validation", "test"]
License: TypeAlias = Literal[
    "Apache 2.0",
    "MIT",
    "Creative Commons Attribution 4.0 International",
    "Creative Commons Attribution-ShareAlike 4.0 International",
    "CC BY-SA 4.0",
    "CC BY-NC 3.0",
    "NVIDIA Internal Use Only, Do Not Distribute",
    "NVIDIA Evaluation Dataset License Agreement",
    "TBD",
    "GNU General Public License v3.0",
    "BSD-3-Clause",
]


class UploadJsonlDatasetGitlabConfig(BaseNeMoGymCLIConfig):
    """Upload a local jsonl dataset artifact to Gitlab.

    gym dataset upload --storage gitlab +dataset_name=sums +version=0.0.1 +input_jsonl_fpath=data/train.jsonl
    """

    dataset_name: str = Field(description="The dataset name.")
    version: str = Field(description="The version of this dataset, x.y.z.")
    input_jsonl_fpath: str = Field(description="The file to upload.")


class JsonlDatasetGitlabIdentifer(BaseModel):
    """A file in the GitLab model registry."""

    dataset_name: str = Field(description="The dataset name.")
    version: str = Field(description="The version of this dataset, x.y.z.")
    artifact_fpath: str = Field(description="The file inside the registry entry.")


class DownloadJsonlDatasetGitlabConfig(JsonlDatasetGitlabIdentifer, BaseNeMoGymCLIConfig):
    """Download a JSONL dataset from GitLab Model Registry.

    gym dataset download --storage gitlab +dataset_name=sums +version=0.0.1 +artifact_fpath=train.jsonl
        +output_fpath=data/train.jsonl
    """

    output_fpath: str = Field(description="Where to write the file.")


class DeleteJsonlDatasetGitlabConfig(BaseNeMoGymCLIConfig):
    """Delete a dataset from GitLab Model Registry (prompts for confirmation).

    gym dataset rm +dataset_name=old_dataset
    """

    dataset_name: str = Field(description="The dataset name.")


class JsonlDatasetHuggingFaceIdentifer(BaseModel):
    """A file, or a whole dataset, on the HuggingFace Hub."""

    repo_id: str = Field(description="The repo id.")
    artifact_fpath: str | None = Field(default=None, description="The file inside the repo.")


class BaseUploadJsonlDatasetHuggingFaceConfig(BaseNeMoGymCLIConfig):
    """Upload a JSONL dataset to HuggingFace Hub with automatic naming based on domain and resources server.

    gym dataset upload +dataset_name=my_dataset +input_jsonl_fpath=data/train.jsonl
        +resource_config_path=resources_servers/example_multi_step/configs/example_multi_step.yaml
    """

    hf_token: str = Field(description="The access token of the Hub.")
    hf_organization: str = Field(description="The organization to upload to.")
    hf_collection_name: str = Field(description="The collection the dataset belongs to.")
    hf_collection_slug: str = Field(description="The slug of that collection.")
    dataset_name: str | None = Field(default=None, description="The dataset name; by default the server's name.")
    input_jsonl_fpath: str = Field(description="The file to upload.")
    resource_config_path: str = Field(description="The resources server's config, which gives the domain.")
    hf_dataset_prefix: str = Field(default="Nemotron-RL", description="The first part of the repo's name.")
    split: Split = Field(default="train", description="The split of the file.")
    create_pr: bool = Field(default=False, description="Open a pull request instead of committing.")
    revision: str | None = Field(default=None, description="The branch to commit to.")
    commit_message: str | None = Field(default=None, description="The commit's message.")
    commit_description: str | None = Field(default=None, description="The commit's description.")


class UploadJsonlDatasetHuggingFaceConfig(BaseUploadJsonlDatasetHuggingFaceConfig):
    """Upload a JSONL dataset to HuggingFace Hub and automatically delete from GitLab after successful upload.

    This command always deletes the dataset from GitLab; `gym dataset upload` leaves the choice.

    gym dataset migrate +dataset_name=my_dataset +input_jsonl_fpath=data/train.jsonl
        +resource_config_path=resources_servers/example_multi_step/configs/example_multi_step.yaml
    """

    forbidden_fields: ClassVar[set[str]] = {"delete_from_gitlab"}

    @model_validator(mode="before")
    @classmethod
    def check_forbidden_fields(cls, data: Any) -> Any:
        present = cls.forbidden_fields.intersection(data) if hasattr(data, "__iter__") else set()
        if present:
            raise ValueError(f"{', '.join(sorted(present))} cannot be set here: this command always deletes")
        return data


class UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(BaseUploadJsonlDatasetHuggingFaceConfig):
    """Upload a JSONL dataset to HuggingFace Hub with optional GitLab deletion after successful upload.

    gym dataset upload +dataset_name=my_dataset +input_jsonl_fpath=data/train.jsonl +delete_from_gitlab=true
        +resource_config_path=resources_servers/example_multi_step/configs/example_multi_step.yaml
    """

    delete_from_gitlab: bool | None = Field(default=False, description="Delete from GitLab after the upload.")


class DownloadJsonlDatasetHuggingFaceConfig(JsonlDatasetHuggingFaceIdentifer, BaseNeMoGymCLIConfig):
    """Download a JSONL dataset from HuggingFace Hub to local filesystem.

    gym dataset download +repo_id=org/name +artifact_fpath=train.jsonl +output_fpath=data/train.jsonl
    """

    output_dirpath: str | None = Field(default=None, description="Folder for all splits.")
    output_fpath: str | None = Field(default=None, description="File for one split or artifact.")
    hf_token: str | None = Field(default=None, description="The access token of the Hub.")
    split: Split | None = Field(default=None, description="The split to download; all by default.")

    @model_validator(mode="after")
    def check_output_path(self) -> "DownloadJsonlDatasetHuggingFaceConfig":
        """Raise ValueError for output options that contradict each other."""
        if bool(self.output_dirpath) == bool(self.output_fpath):
            raise ValueError("give exactly one of output_dirpath and output_fpath")
        if self.artifact_fpath and self.split:
            raise ValueError("give either artifact_fpath or split, not both")
        if self.output_fpath and not (self.split or self.artifact_fpath):
            raise ValueError("output_fpath needs split or artifact_fpath; use output_dirpath for all splits")
        return self


class GitlabDatasetSource(JsonlDatasetGitlabIdentifer):
    """Unified `source:` for a dataset fetched from the GitLab model registry."""

    type: Literal["gitlab"]


class HuggingFaceDatasetSource(JsonlDatasetHuggingFaceIdentifer):
    """Unified `source:` for a dataset fetched from the HuggingFace Hub."""

    type: Literal["huggingface"]


DatasetSource: TypeAlias = Annotated[GitlabDatasetSource | HuggingFaceDatasetSource, Field(discriminator="type")]


class DatasetConfig(BaseModel):
    """One dataset. Train and validation data need a licence."""

    name: str
    type: DatasetType
    jsonl_fpath: str
    num_repeats: int = Field(default=1, ge=1)
    source: DatasetSource | None = None
    gitlab_identifier: JsonlDatasetGitlabIdentifer | None = None
    huggingface_identifier: JsonlDatasetHuggingFaceIdentifer | None = None
    license: License | None = None
    start_idx: int | None = Field(default=None, ge=0)
    """The index of the first row to use."""
    end_idx: int | None = Field(default=None, ge=0)
    """The index after the last row to use."""
    agent: str | None = Field(default=None, exclude_if=lambda agent: agent is None)
    """The agent that runs the rows, if a resources server that several agents use declares the dataset."""

    @model_validator(mode="after")
    def check_train_validation_sets(self) -> "DatasetConfig":
        if self.type != "example" and self.license is None:
            raise ValueError(f"a license is required for {self.type} data ('{self.name}')")
        if self.start_idx is not None and self.end_idx is not None and self.end_idx < self.start_idx:
            raise ValueError("end_idx lies before start_idx")
        return self

    @model_validator(mode="after")
    def reconcile_source_and_identifiers(self) -> "DatasetConfig":
        """Set `source` from a deprecated identifier or vice versa, so that code can read either.

        A field that is set through `__dict__` does not count as given by the user.
        """
        identifiers = {"gitlab": self.gitlab_identifier, "huggingface": self.huggingface_identifier}
        deprecated = [kind for kind, identifier in identifiers.items() if identifier is not None]
        names = " and ".join(f"{kind}_identifier" for kind in deprecated)
        if self.source is not None:
            if deprecated:
                raise ValueError(f"give either source or {names}, not both")
            fields = self.source.model_dump(exclude={"type"})
            is_gitlab = isinstance(self.source, GitlabDatasetSource)
            identifier_class = JsonlDatasetGitlabIdentifer if is_gitlab else JsonlDatasetHuggingFaceIdentifer
            self.__dict__[f"{self.source.type}_identifier"] = identifier_class(**fields)
        elif deprecated:
            text = f"{names} of dataset '{self.name}': use 'source:' instead"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        if len(deprecated) == 1:
            [kind] = deprecated
            source_class = GitlabDatasetSource if kind == "gitlab" else HuggingFaceDatasetSource
            fields = getattr(self, f"{kind}_identifier").model_dump()
            self.__dict__["source"] = source_class(type=kind, **fields)
        return self


class BenchmarkDatasetConfig(BaseModel):
    """A dataset that the benchmark's script prepares."""

    name: str
    type: Literal["benchmark"]
    jsonl_fpath: Path
    prepare_script: Path
    prompt_config: Path | None = None
    num_repeats: int = Field(default=1, ge=1)
    agent: str | None = Field(default=None, exclude_if=lambda agent: agent is None)


def _dataset_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "benchmark" if kind == "benchmark" else "rows"


AnyDatasetConfig: TypeAlias = Annotated[
    Annotated[DatasetConfig, Tag("rows")] | Annotated[BenchmarkDatasetConfig, Tag("benchmark")],
    Discriminator(_dataset_kind),
]
