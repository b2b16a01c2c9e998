"""Parts of the data: which value of a field a record belongs to."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from nemo_gym.errors import ConfigError

MOST_SUBSETS = 1000


class SubsetBy:
    """Tells a record's part by a field, which may lie deeper: `verifier_metadata.level`. No value, no part."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._path = field.split(".")
        self._seen: set[str] = set()
        self._fields: tuple[str, ...] = ()

    def __call__(self, record: Mapping[str, Any]) -> str | None:
        value: Any = record
        for name in self._path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None or isinstance(value, dict | list) or value == "":
            self._fields = tuple(record)
            return None
        text = str(value)
        if text not in self._seen:
            self._seen.add(text)
            if len(self._seen) > MOST_SUBSETS:
                raise ConfigError(
                    f"'{self.field}' has more than {MOST_SUBSETS} values", fix="choose a field that sorts the tasks"
                )
        return text

    def check(self, where: str) -> None:
        """Refuse a field that no record has."""
        if not self._seen:
            close = get_close_matches(self.field, self._fields, n=1)
            shown = ", ".join(name for name in self._fields if not name.startswith("_ng_"))
            raise ConfigError(
                f"no rollout has a value in '{self.field}'", where=where, fix=close[0] if close else f"one of {shown}"
            )
