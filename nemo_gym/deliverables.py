"""Which files in the output folder of an agent are its deliverables, and which belong to the run itself."""

from pathlib import Path

IGNORE_FILES = frozenset(
    {
        "finish_params.json",
        "history.json",
        "history.pkl",
        "inprogress_history.json",
        "log.txt",
        "metadata.json",
        "reference_files",
    }
)
"""Names of files and folders that agents write for themselves."""


def is_deliverable(path: str | Path) -> bool:
    """Return whether a file was made for the user, not by the agent for itself."""
    return Path(path).name not in IGNORE_FILES
