"""`python -m tools.clients`: run the installed programs and compare the table of docs/clients.md, or write it."""

import argparse
import os
import sys
import time
from pathlib import Path

from tools.clients.catalog import CLIENTS
from tools.clients.isolation import restart_isolated
from tools.clients.runner import ClientRun, report_line, run_clients, write_results
from tools.clients.servers import SERVERS, model_servers
from tools.clients.table import PAGE, updated_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 dev.py clients", description=__doc__)
    parser.add_argument("--client", action="append", help="run this client only; may be repeated")
    parser.add_argument("--server", action="append", choices=SERVERS, help="use this model server only")
    parser.add_argument("--check", action="store_true", help="fail if docs/clients.md has another table")
    parser.add_argument("--workers", type=int, default=max(2, os.cpu_count() or 2), help="programs at a time")
    args = parser.parse_args()
    status = restart_isolated()
    if status is not None:
        return status
    selected = [client for client in CLIENTS if not args.client or client.name in args.client]
    for client in [client for client in selected if client.version() is None]:
        selected.remove(client)
        print(f"skipped {client.name}: the package {client.package} is not installed")
    runs = [
        ClientRun(client, dialect, server)
        for client in selected
        for dialect in client.dialects
        for server in args.server or SERVERS
    ]
    started = time.monotonic()
    results = []
    with model_servers() as ports:
        for result in run_clients(runs, ports, workers=args.workers):
            results.append(result)
            print(report_line(result), flush=True)
    failed = sum(result.problem is not None for result in results)
    times = os.times()
    cpu = times.children_user + times.children_system
    seconds = time.monotonic() - started
    print(f"{len(results) - failed} of {len(results)} runs finished the task, in {seconds:.0f} s ({cpu:.0f} s of CPU)")
    write_results(results, Path("results/clients.jsonl"))
    is_whole = len(selected) == len(CLIENTS) and not args.server
    if is_whole:
        page = updated_page(results)
        if args.check and page != PAGE.read_text():
            print(f"{PAGE.name} has another table; run python3 dev.py clients and commit the page")
            return 1
        PAGE.write_text(page)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
