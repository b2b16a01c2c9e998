"""SQL as a model writes it: found in the reply, its comments taken out, what is inside quotes left alone."""

import re

from nemo_gym.grading.fences import last_block
from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed

NAMES = ("sql", "sqlite", "sqlite3")

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
    """`sql` with a space for every comment. Dashes and slashes inside a text or a quoted name are no comment."""
    return _PIECE.sub(lambda piece: " " if piece["comment"] is not None else piece.group(), sql)


def last_query(text: str) -> Extraction[str]:
    """The query in the last SQL block, without comments and closing semicolons. No block, no query."""
    block = last_block(text, NAMES)
    if isinstance(block, Unparsed):
        return block
    query = without_comments(block.value).strip().rstrip("; \t\r\n")
    if not query:
        return Unparsed("the last sql block has no query")
    return Extracted(query, block.span, "sql_block")
