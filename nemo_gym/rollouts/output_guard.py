"""Notice that another program deletes, replaces or cuts a file of the run, and lose no result because of it.

A deleted file stays readable as long as it is open, so it is written again. A file that was replaced is left alone: the
results are saved next to it, and the run stops. If the folder was replaced, they are saved in a folder next to that, as
`<folder>_recovered`. What was cut off cannot be read any more: the run stops, and a resumed
run runs those rollouts again.
"""

import contextlib
import logging
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from nemo_gym.journal import LineWriter, StoreError, repair, sync_folder

logger = logging.getLogger("nemo_gym.rollouts")


class RestorableFile:
    """A file that is kept open, so that it can be written again after it was deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("rb")
        self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def is_in_place(self) -> bool:
        """Return whether the path still names this file; also True for a pipe or a device."""
        try:
            return not self._is_regular or os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def restore_if_deleted(self) -> bool:
        """Write the file again if its path does not exist any more, and return whether that was so."""
        if os.path.lexists(self.path) or self._is_folder_replaced():
            return False
        self._save_to(self.path)
        logger.warning("%s was deleted during the run; it has been written again", self.path)
        return True

    def restore_or_save(self) -> None:
        """Write the file again if it was deleted; save it elsewhere if its folder was replaced."""
        if not self.restore_if_deleted() and self._is_folder_replaced():
            logger.warning(
                "the folder of %s was replaced during the run; the file is saved in %s", self.path, self.save()
            )

    def save(self, more: bytes = b"") -> Path:
        """Write the content, then `more`, under a new name, and return its path.

        Raises:
            StoreError: the file cannot be written.
        """
        folder = next(parent for parent in self.path.parents if parent.is_dir())
        first, *others = self.path.relative_to(folder).parts  # `first` is the file, or a folder that was replaced
        stem, suffix = (Path(first).stem, Path(first).suffix) if not others else (first, "")
        names = (f"{stem}_recovered{number}{suffix}" for number in ("", *range(2, 1000)))
        saved = next(path for name in names if not (path := folder.joinpath(name, *others)).exists())
        self._save_to(saved, more)
        return saved

    def _is_folder_replaced(self) -> bool:
        """Return whether the place of the folder, or of a folder above it, is taken by something else."""
        return any(os.path.lexists(parent) and not parent.is_dir() for parent in self.path.parents)

    def _save_to(self, path: Path, more: bytes = b"") -> None:
        partial = path.with_name(f"{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file.seek(0)
            with partial.open("wb") as copy:
                shutil.copyfileobj(self._file, copy, 1 << 20)
                copy.write(more)
                copy.flush()
                os.fsync(copy.fileno())
            partial.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise StoreError(
                f"another program deleted or replaced {self.path.name} during the run, and it cannot be written again: "
                f"{error.strerror or error}",
                where=str(path),
                fix="its results are lost; find out what changes the folder, then run the same command again",
            ) from error

    def close(self) -> None:
        self._file.close()


class GuardedWriter(LineWriter):
    """Append lines to a file that other programs may delete, replace or cut in the meantime."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._restorable = RestorableFile(path)
        except BaseException:
            self._file.close()
            raise
        self._closing = contextlib.ExitStack()
        """Closes files that were deleted, at the end: the sync thread may still use them."""
        self._is_lost = False
        """True after the file was replaced or cut."""

    def sync(self) -> None:
        self._is_in_place = self._restorable.is_in_place()  # if not, the next `append` recovers, on the writer's thread
        super().sync()

    def close(self) -> None:
        try:
            if not self._is_lost:  # the file may have been deleted, replaced or cut after the last line
                self._recover()
        finally:
            super().close()
            self._restorable.close()
            self._closing.close()

    def _recover(self, line: bytes = b"") -> None:
        """Write the file again if it was deleted; do nothing if it is intact.

        Raises:
            StoreError: the file was replaced or cut; the lines that can still be read are saved, and `line` with them.
        """
        self._is_in_place = True
        if self._restorable.is_in_place():
            status = os.fstat(self._file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size < self._end:
                self._raise_loss(self._save_cut_file(status.st_size, line))
        elif self._restorable.restore_if_deleted():
            self._closing.callback(self._restorable.close)
            self._closing.callback(self._file.close)
            self._restorable, self._file = RestorableFile(self.path), self.path.open("ab", buffering=0)
        else:
            self._raise_loss(self._save_replaced_file(line))

    def _raise_loss(self, error: StoreError) -> None:
        self._is_lost = True
        self._failure = error
        raise error

    def _save_cut_file(self, size: int, line: bytes) -> StoreError:
        """Append `line` to what is left of the file, and return the error to raise."""
        earlier_end, self._end = self._end, repair(self.path)  # removes a line that was cut in two
        self.append(line)
        return StoreError(
            f"another program cut this file from {earlier_end:,} to {size:,} bytes during the run",
            where=str(self.path),
            fix="run the same command with --resume; it runs the missing rollouts again",
        )

    def _save_replaced_file(self, line: bytes) -> StoreError:
        """Save the original file and `line` under a new name, and return the error to raise."""
        saved = self._restorable.save(line)
        is_next_to_it = saved.parent == self.path.parent
        moves = f"{saved.name} to {self.path.name}" if is_next_to_it else f"the files in {saved.parent} to their folder"
        return StoreError(
            f"another program replaced this {'file' if is_next_to_it else 'folder'} during the run; the results are "
            f"saved in {saved}",
            where=str(self.path if is_next_to_it else self.path.parent),
            fix=f"move {moves} and run the same command with --resume",
        )
