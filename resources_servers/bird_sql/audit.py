"""Right, odd, wrong and cheating replies for `gym env audit bird_sql`."""

import textwrap

from nemo_gym.authoring.model_replies import Row
from resources_servers.bird_sql.generate import KINDS

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
VOLATILE = (r'"execution_seconds":([0-9.e-]+)',)
ROWS = 4
MOST_FOR_WRONG = 0.0
CONFIG = {"sql_timeout_secs": 0.3}


def _block(query: str, *, fence: str = "```", name: str = "sql") -> str:
    return f"{fence}{name}\n{query}\n{fence}"


def oracle(row: Row) -> str:
    return f"I join the tables and filter.\n\n{_block(row['sql'])}"


def odd_forms(row: Row) -> list[str]:
    sql = row["sql"]
    block = _block(sql)
    return [
        _block(sql, name="SQL"),
        _block(sql, name="sqlite"),
        _block(sql, name="sql title=answer"),
        _block(sql, fence="~~~"),
        _block(sql, fence="````"),
        _block(f"{sql};"),
        _block(f"{sql} ; \n\n;"),
        _block(f"\n\n  {sql}\n\n"),
        block.replace("\n", "\r\n"),
        _block(f"-- the answer; it's simple\n{sql}"),
        _block(f"{sql} -- done; 'and' dusted"),
        _block(f"/* one\n * two -- 'three'\n */ {sql}"),
        _block(f"{sql} /* never closed"),
        _block(sql.replace(" FROM ", " /* from; */\nFROM -- here\n", 1)),
        _block(f"SELECT * FROM ({sql})"),
        _block(f"WITH answer AS ({sql}) SELECT * FROM answer"),
        _block(f"SELECT DISTINCT * FROM ({sql}) ORDER BY 1 DESC"),
        _block(f"SELECT * FROM ({sql}) UNION ALL SELECT * FROM ({sql})"),
        _block(f'SELECT * FROM ({sql}) AS "it\'s -- a name"'),
        _block(f"SELECT * FROM ({sql}) WHERE '-- no comment' <> '/* nor this */'"),
        _block("\n".join(sql.split(" "))),
        f"{_block('SELECT 1')}\nThat was a start. The whole query:\n{block}",
        f"{block}\nIn Python:\n{_block('print(1)', name='python')}",
        f"<think>{_block('SELECT 1')}</think>{block}",
        f"1. The query:\n{textwrap.indent(block, '   ')}\n2. Done.",
        f"{block}\nIt gives one line for each.",
    ]


def wrong(row: Row) -> list[str]:
    sql = row["sql"]
    values = {key: value for key, value in row["problem"].items() if key != "kind"}
    return [
        _block(KINDS[row["problem"]["kind"]].wrong.format(**values)),
        _block(f"SELECT * FROM ({sql}) LIMIT 0"),
        _block(f"SELECT answer.*, 1 FROM ({sql}) AS answer"),
        _block(f"{sql} WHERE"),
        _block(f"SELECT COUNT(*) + 1000000 FROM ({sql})"),
        _block(f"{sql}; {sql}"),
        _block(f"-- {sql}"),
        sql,  # in no block at all
        _block(sql, name="text"),
        f"```sql\n{sql}",  # never closed
        f"{_block(sql)}\nOr rather\n{_block('SELECT 1')}",
    ]


def cheats(row: Row) -> list[tuple[str, str]]:
    table = {"library": "book", "orchard": "tree"}[row["db_id"]]
    queries = {
        "a harmless filler": "SELECT 1",
        "nothing": "SELECT NULL WHERE 0",
        "only a comment": "-- SELECT 1",
        "everything": f"SELECT * FROM {table}",
        "the schema": "SELECT sql FROM sqlite_master",
        "another database": "ATTACH DATABASE 'other.sqlite' AS other",
        "an extension": "SELECT load_extension('libcheat')",
        "a file": "SELECT readfile('data.sqlite')",
        "a pragma": "PRAGMA query_only = 0",
        "a pragma as a table": "SELECT * FROM pragma_database_list",
        "a table dropped": f"DROP TABLE {table}",
        "rows deleted": f"DELETE FROM {table}",
        "a view in place of a table": f"CREATE TEMP VIEW {table} AS SELECT 1",
        "rows without end": f"{ENDLESS} SELECT x FROM n",
        "counting without end": f"{ENDLESS} SELECT COUNT(*) FROM n",
        "everything with everything": f"SELECT COUNT(*) FROM {', '.join(f'{table} AS t{i}' for i in range(9))}",
        "a text without end": "SELECT replace(hex(zeroblob(100000000)), '0', '0123456789')",
        "two statements": f"SELECT 1; {row['sql']}",
        "a forged result": 'SELECT \'{"kind": null, "rows": []}\'',
    }
    return [(name, _block(query)) for name, query in queries.items()]


MALFORMED = [
    ("an unknown database", lambda row: {**row, "db_id": "nowhere"}),
    ("a path for a database", lambda row: {**row, "db_id": "../library"}),
    ("a gold query that does not run", lambda row: {**row, "sql": "SELECT nothing FROM nowhere"}),
    ("a gold query that changes something", lambda row: {**row, "sql": "DROP TABLE book"}),
]
