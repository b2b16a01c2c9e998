"""Datasets on the Hugging Face Hub: the public functions."""

from pathlib import Path

from nemo_gym.config_types import BaseUploadJsonlDatasetHuggingFaceConfig, DownloadJsonlDatasetHuggingFaceConfig
from nemo_gym.data import hub
from nemo_gym.data.hub import PublishedFile

__all__ = ["PublishedFile", "download_jsonl_dataset", "upload_jsonl_dataset"]


def upload_jsonl_dataset(config: BaseUploadJsonlDatasetHuggingFaceConfig) -> PublishedFile:
    """Publish a file as one split of a private dataset in a collection, and verify it."""
    return hub.upload(config)


def download_jsonl_dataset(config: DownloadJsonlDatasetHuggingFaceConfig) -> list[Path]:
    """Download a file, a split or every split of a dataset; return the files written."""
    return list(hub.download(config))
