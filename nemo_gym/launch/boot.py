"""What a server process is told when it begins: on a descriptor, so that nothing of it shows in a process list."""

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any


def boot_file(boot: Mapping[str, Any]) -> int:
    """A descriptor from which a child reads what it needs to know."""
    with tempfile.TemporaryFile() as unnamed:
        unnamed.write(json.dumps(boot).encode())
        unnamed.seek(0)
        return os.dup(unnamed.fileno())
