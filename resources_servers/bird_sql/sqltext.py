"""Find the query in a reply and remove its comments, but nothing inside quotes."""

import re

from nemo_gym.grading.extraction import last_fenced_block
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer

BLOCK_NAMES = ("sql", "sqlite", "sqlite3")

_PIECE = re.compile(
    r"""
      '(?:[^']|'')*+(?:'|\Z)          # a text; a doubled quote stays inside it
    | "(?:[^"]|"")*+(?:"|\Z)          # names in the three ways SQLite knows
    | `(?:[^`]|``)*+(?:`|\Z)
    | \[[^\]]*+(?:\]|\Z)
    | (?P<comment>--[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z))
    """,
    re.VERBOSE,
)


def without_comments(sql: str) -> str:
    """Replace every comment with a space. Dashes and slashes inside a text or a quoted name are not comments."""
    return _PIECE.sub(lambda piece: " " if piece["comment"] is not None else piece.group(), sql)


def last_query(text: str) -> Extraction[str]:
    """Extract the query from the last SQL block, without comments and closing semicolons."""
    block = last_fenced_block(text, BLOCK_NAMES)
    if isinstance(block, NoAnswer):
        return block
    query = without_comments(block.value).strip().rstrip("; \t\r\n")
    if not query:
        return NoAnswer("the last sql block has no query")
    return ExtractedAnswer(query, block.span, "sql_block")
