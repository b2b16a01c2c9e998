"""Export the samples of stored rollouts, for a trainer that reads files."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.data.export import ExportResult
from nemo_gym.data.export_selection import ExportDatasetConfig, format_counts, index_rollouts
from nemo_gym.data.file_transfer import Meter, ignore_progress
from nemo_gym.journal import RolloutReader
from nemo_gym.training.files import write_samples
from nemo_gym.training.samples import rollout_of
from nemo_gym.training.types import Rollout


def export_samples(config: ExportDatasetConfig, *, meter: Meter = ignore_progress) -> ExportResult:
    """Write the samples of all trainable rollouts, sorted by task; count the others by the reason.

    Raises:
        ConfigPathNotFoundError: a file is missing.
        StoreError: a file is damaged.
        DataError: no rollout is trainable; no file was written.
    """
    index = index_rollouts(config.rollouts_jsonl_fpath, meter)
    skipped: Counter[str] = Counter()

    def trainable_rollouts() -> Iterator[Rollout]:
        with RolloutReader(index.files) as reader:
            for group in index.groups():
                for stored in group:
                    rollout = rollout_of(reader.row(stored.offset, stored.file), group=str(stored.task))
                    if rollout.why_not is None:
                        yield rollout
                    else:
                        skipped[rollout.why_not.partition(":")[0]] += 1
        if skipped.total() == len(index):
            raise DataError(f"no rollout is trainable: {format_counts(skipped)}")

    path = Path(config.output_fpath)
    rows = write_samples(path, trainable_rollouts())
    return ExportResult(path, config.format, rows, len(index), len(index.tasks), index.left_out, skipped)
