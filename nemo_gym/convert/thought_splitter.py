"""Split a text that arrives in pieces into thoughts inside `<think>…</think>` and the rest."""

from collections.abc import Iterator

BEGIN, END = "<think>", "</think>"


class ThinkTagSplitter:
    """Splits a text that arrives in pieces.

    The chat templates of some models end with `<think>`; their text is known to begin with a thought only at its end.
    With `holds_back`, nothing is certain until the first tag, so that no thought is taken for visible text.
    """

    _TAGS = (BEGIN, END)

    def __init__(self, *, holds_back: bool = False) -> None:
        """Prepare a splitter."""
        self.began_inside = False
        """A thought ended that had not begun in the text."""
        self._holds_back = holds_back
        self._has_begun = False
        self._tail = ""
        self._pending = ""
        self._is_inside = False

    def feed(self, piece: str) -> Iterator[tuple[bool, str]]:
        """Yield the parts of the text that are certain, each with True for a thought."""
        self._pending += piece
        if self._holds_back:
            end, begin = self._pending.find(END), self._pending.find(BEGIN)
            if end < 0 and begin < 0:
                return
            self._holds_back = False
            self.began_inside = self._is_inside = end >= 0 and (begin < 0 or end < begin)
            self._has_begun = True
        while (position := self._pending.find(tag := self._TAGS[self._is_inside])) >= 0:
            yield self._certain(self._pending[:position])
            self._pending = self._pending[position + len(tag) :]
            self._is_inside = not self._is_inside
            self._has_begun = True
        size = next((n for n in range(len(tag) - 1, 0, -1) if self._pending.endswith(tag[:n])), 0)
        certain, self._pending = self._pending[: len(self._pending) - size], self._pending[len(self._pending) - size :]
        yield self._certain(certain)

    def flush(self) -> tuple[bool, str]:
        """Return what was held back, because no more text follows or the endpoint separates thoughts itself."""
        pending, self._pending, self._holds_back = self._pending, "", False
        return self._certain(pending)

    def _certain(self, text: str) -> tuple[bool, str]:
        """Return a part of the text; note whether a thought ended in it that had not begun."""
        if not self._has_begun and text:
            self._tail += text
            self.began_inside = self.began_inside or END in self._tail
            self._tail = self._tail[-len(END) :]
        return self._is_inside, text
