"""Comments are removed from queries, quoted texts are not."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.grading.result_types import ExtractedAnswer, NoAnswer
from resources_servers.bird_sql.sqltext import last_query, without_comments


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 -- one", "SELECT 1  "),
        ("SELECT 1 -- one\n, 2", "SELECT 1  \n, 2"),
        ("SELECT /* a */ 1", "SELECT   1"),
        ("SELECT '--' || x", "SELECT '--' || x"),
        ("SELECT '/* a */', 1 -- b", "SELECT '/* a */', 1  "),
        ("SELECT 'it''s -- fine', 1", "SELECT 'it''s -- fine', 1"),
        ('SELECT "a--b" FROM t', 'SELECT "a--b" FROM t'),
        ("SELECT `a--b`, [c--d] FROM t", "SELECT `a--b`, [c--d] FROM t"),
        ("SELECT 1 /* never closed", "SELECT 1  "),
        ("SELECT 1 /* ' */ + 1 -- '", "SELECT 1   + 1  "),
        ("SELECT 'never closed -- x", "SELECT 'never closed -- x"),
        ("SELECT 1 - -1, 4 / 2 * 3", "SELECT 1 - -1, 4 / 2 * 3"),
        ("SELECT 1 /**/ + /***/ 2", "SELECT 1   +   2"),
    ],
)
def test_comments_are_removed_outside_of_quotes(sql: str, expected: str) -> None:
    """Dropping every text after two dashes would change the query."""
    assert without_comments(sql) == expected


PIECES = st.sampled_from(
    ["SELECT 'a' ", ", 1 ", "-- x\n", "/* y */", ", '--' ", ", '/*' ", ", 'it''s' ", ', "b" ', "/* ' */ ", '-- " \n']
)


@given(st.lists(PIECES, max_size=8))
@settings(max_examples=100, deadline=None)
def test_sqlite_reads_the_same_query_with_and_without_its_comments(pieces: list[str]) -> None:
    """SQLite decides what a comment is."""
    sql = "SELECT 0 " + "".join(pieces).replace("SELECT", ",")
    database = sqlite3.connect(":memory:")
    try:
        answers = [database.execute(query).fetchall() for query in (sql, without_comments(sql))]
    finally:
        database.close()

    assert answers[0] == answers[1]


NO_QUERY = ["```sql\n-- nothing\n```", "```sql\n;\n```", "```\nSELECT 1\n```", "SELECT 1", "```sql\nSELECT 1"]


@pytest.mark.parametrize("text", NO_QUERY)
def test_a_reply_without_a_query_gives_no_query(text: str) -> None:
    """A filler query in its place could be right."""
    assert isinstance(last_query(text), NoAnswer)


def test_the_last_query_counts_without_its_semicolon() -> None:
    """SQLite runs one statement at a time."""
    query = last_query("```sql\nSELECT 1\n```\n```SQL\nSELECT 2 ; -- done\n```")

    assert isinstance(query, ExtractedAnswer)
    assert query.value == "SELECT 2"
