"""A log of what repeats: a failure is one line for each cause, then its count; a field left out is one line.

Programs send a refused request again, and every rollout of a run meets the same broken endpoint. A line for each call
would hide all other failures.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable

logger = logging.getLogger("nemo_gym.serve")

MAX_CAUSES = 256
"""Causes that are counted. The cause that failed longest ago is dropped, and reported again if it returns."""
MAX_CAUSE_LENGTH = 1000
MAX_DROPPED_FIELDS = 200
"""Fields that are reported; clients choose their names."""

_ROLLOUT_PREFIX = re.compile(r"/ng-rollout/[^/\s]+(?:/budget/[^/\s]+)?")
_VARIABLE = re.compile(
    r"(https?://[^\s/]+|\.py:\d+|answered \d+)|0x[0-9a-f]+|\b(?=[a-z]*\d)[0-9a-z]{8,}\b|\d+", re.IGNORECASE
)
"""Numbers and ids, which differ between failures of one cause; and, as a group, hosts, lines of code and statuses."""


class FailureLog:
    """The log of the failures of one server."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._dropped: set[str] = set()

    def report(self, level: int, text: str, details: str = "") -> None:
        """Log a failure: the first of a cause with details, then the 10th, 100th, … with their number."""
        if not logger.isEnabledFor(level):
            return
        cause = (level, _cause_of(text))
        number = self._counts.pop(cause, 0) + 1
        self._counts[cause] = number
        if len(self._counts) > MAX_CAUSES:
            self._counts.popitem(last=False)
        if number == 1:
            logger.log(level, "%s%s", text, details)
        elif number == 10 ** (len(str(number)) - 1):
            logger.log(level, "%s (failure %d of this kind; number %d is logged next)", text, number, 10 * number)

    def report_dropped(self, server: str, fields: Iterable[str]) -> None:
        """Log what is left out of a request, once for each field."""
        for field in fields:
            if field not in self._dropped and len(self._dropped) < MAX_DROPPED_FIELDS:
                self._dropped.add(field)
                logger.warning("%s: left out of requests: %s", server, field)


def _cause_of(text: str) -> str:
    """Return the text of a failure without what differs between calls that fail for the same reason."""
    start = _ROLLOUT_PREFIX.sub("", text[:MAX_CAUSE_LENGTH])
    return _VARIABLE.sub(lambda match: match[1] or "#", start)
