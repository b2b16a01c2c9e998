"""The page docs/clients.md: which programs finish the coding task through which servers, in which dialects."""

from collections.abc import Sequence
from pathlib import Path

from tools.clients.runner import ClientResult
from tools.clients.servers import SERVERS

PAGE = Path(__file__).parent.parent.parent / "docs" / "clients.md"
BEGIN, END = "<!-- table: python3 dev.py clients -->", "<!-- end of table -->"


def table_lines(results: Sequence[ClientResult]) -> list[str]:
    """Return the lines of the table: one row for each program and dialect, one column for each server."""
    lines = [f"| client | version | dialect | {' | '.join(f'`{name}`' for name in SERVERS)} |"]
    lines.append("|---|---|---|" + "---|" * len(SERVERS))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    versions: dict[str, str] = {}
    for result in results:
        run = result.run
        versions[run.client.name] = run.client.version() or "?"
        rows.setdefault((run.client.name, run.dialect), {})[run.server] = "fails" if result.problem else "completes"
    for (client, dialect), cells in rows.items():
        name = dialect if dialect.endswith(" whole") else f"{dialect} streamed"
        if client == "mini-swe-agent":
            name = f"{dialect} whole"
        columns = " | ".join(cells.get(server, "–") for server in SERVERS)
        lines.append(f"| {client} | {versions[client]} | {name} | {columns} |")
    return lines


def updated_page(results: Sequence[ClientResult]) -> str:
    """Return the page with a new table."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *table_lines(results), "", END + after])
