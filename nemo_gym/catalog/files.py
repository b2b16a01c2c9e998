"""Writing a file so that nobody ever sees half of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes: it appears, or replaces the earlier one, only when the block ends well.

    Missing folders are created. When the block raises, what was at `path` is still there and nothing else remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with unfinished.open("xb") as stream:
            yield stream
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
