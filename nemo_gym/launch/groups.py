"""Process groups: a server and everything it started, signalled together."""

import os


def signal_group(pid: int, number: int) -> None:
    """Signal the group that `pid` leads; one that is gone already is fine."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return
