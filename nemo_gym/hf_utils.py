"""Datasets on the Hugging Face Hub under their public names."""

from pathlib import Path

from nemo_gym.config_types import BaseUploadJsonlDatasetHuggingFaceConfig, DownloadJsonlDatasetHuggingFaceConfig
from nemo_gym.data import hub
from nemo_gym.data.hub import Published

__all__ = ["Published", "download_jsonl_dataset", "upload_jsonl_dataset"]


def upload_jsonl_dataset(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> Published:
    """Publish a file as one split of a private dataset in a collection, and verify it."""
    return hub.upload(config)


def download_jsonl_dataset(config: DownloadJsonlDatasetHuggingFaceConfig) -> list[Path]:
    """Download a file, a split or every split of a dataset; the files written."""
    return list(hub.download(config))
