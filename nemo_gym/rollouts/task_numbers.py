"""Task numbers of dataset lines: identical lines share a task. A few dozen bytes of memory per line."""

import hashlib
from array import array


class TaskNumbers:
    """Number the tasks of lines and count the rollouts of each task."""

    def __init__(self) -> None:
        self._first_lines = FirstLines()
        self._lines = 0
        self._rollouts = array("L")  # by task, for tasks numbered here
        self._high_rollouts: dict[int, int] = {}  # by task, for higher task numbers that rows contain

    def restart(self) -> "TaskNumbers":
        """Start at the first line again, but continue counting rollouts; returns self."""
        self._lines = 0
        return self

    def next_task(self, line: bytes, own_number: int | None) -> int:
        """Return the task of the next line: `own_number` if the row has one, else the index of the first equal line."""
        index = self._lines
        self._lines += 1
        if index == len(self._rollouts):
            self._rollouts.append(self._high_rollouts.pop(index, 0))
        first = self._first_lines.find_or_add(line.strip(), index)
        return first if own_number is None else own_number

    def next_rollouts(self, task: int, repeats: int) -> range:
        """Add `repeats` rollouts to a task and return their numbers."""
        if task < len(self._rollouts):
            begin = self._rollouts[task]
            self._rollouts[task] += repeats
        else:
            begin = self._high_rollouts.get(task, 0)
            self._high_rollouts[task] = begin + repeats
        return range(begin, begin + repeats)


class FirstLines:
    """Map each line's content to the index of the first line with it.

    An open-addressing hash table with 24 bytes per slot, at most two thirds full. A dictionary would take six times as
    much memory.
    """

    def __init__(self) -> None:
        self._used = 0
        self._allocate(1 << 10)

    def _allocate(self, size: int) -> None:
        self._size = size
        self._low, self._high, self._index = (array("Q", bytes(8 * size)) for _ in range(3))

    def find_or_add(self, content: bytes, index: int) -> int:
        """Return the index of the first line with this content, which may be `index` itself."""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        low = int.from_bytes(digest[:8], "little") or 1  # 0 marks a free slot
        high = int.from_bytes(digest[8:], "little")
        slot = self._find_slot(low, high)
        if self._low[slot]:
            return self._index[slot]
        self._low[slot], self._high[slot], self._index[slot] = low, high, index
        self._used += 1
        if self._used * 3 > self._size * 2:
            self._grow()
        return index

    def _find_slot(self, low: int, high: int) -> int:
        """Return the slot of this hash, or the free slot where it belongs."""
        mask = self._size - 1
        slot = low & mask
        while (stored := self._low[slot]) and (stored != low or self._high[slot] != high):
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        """Double the number of slots."""
        old = self._low, self._high, self._index
        self._allocate(self._size * 2)
        for low, high, index in zip(*old, strict=True):
            if low:
                slot = self._find_slot(low, high)
                self._low[slot], self._high[slot], self._index[slot] = low, high, index
