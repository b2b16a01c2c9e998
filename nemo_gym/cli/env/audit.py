"""Audit a verifier with right, odd, wrong, cheating and malformed answers, and show every wrong verdict.

NAME is a resources server with an audit.py; --all audits all of them. The server runs in this process, or in its
virtual environment if it needs one. No model is called: audit.py provides the right answers. Exit status: 0 no
findings, 1 findings or the audit could not run, 2 unknown name.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import component_search_roots
from nemo_gym.errors import ConfigError
from nemo_gym.keys import RESOURCES

if TYPE_CHECKING:
    from nemo_gym.cli.shared.verifiers import Audit
    from nemo_gym.launch.folder_tests import FolderTests

HEADINGS = (
    "SERVER", "ROWS", "CASES", "FALSE +", "FALSE -", "CHEATS PAID", "FLIPS", "MALFORMED", "JUDGE", "ERRORS",
    "P50 MS", "",
)  # fmt: skip
COUNTS = ("rows", "cases", "false_positives", "false_negatives", "cheats_paid", "flips", "malformed_rows_accepted")
"""Keys of an audit's JSON for the columns from ROWS to MALFORMED."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    parser.add_argument("name", nargs="*", metavar="NAME", help="resources servers to audit")
    flags.switch("--all", "audit every resources server that has an audit.py")
    flags.integer("--rows", "number of rows to generate in addition to the examples (default: 10)")
    flags.integer("--seed", "seed of the generated rows (default: 1)", default=1)
    flags.switch("--update-readme", "write the result into the folder's README.md")
    flags.search_dir()
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.authoring.audit_result import AuditResult, update_readme
    from nemo_gym.cli.shared.verifiers import run_audits
    from nemo_gym.launch.venv import VenvSettings

    names = options.take_names(args)
    settings = VenvSettings.from_config(options.resolve_config(args).config)
    servers = _choose_servers(names, every=args.all)
    if args.rows is not None and args.rows < 0:
        raise options.UsageError(f"{args.rows} is not a number of rows", where="--rows", fix="0 or more")
    audits = run_audits(servers, settings, rows=args.rows, seed=args.seed)
    for server in servers if args.update_readme else ():
        audit = audits[server.name]
        if isinstance(audit, AuditResult) and update_readme(server.folder / "README.md", audit):
            output.notify(f"updated {server.label}/README.md")
    _print_audits(audits, as_json=args.json)
    return int(not all(audit.is_clean for audit in audits.values()))


def _choose_servers(names: Sequence[str], *, every: bool) -> list[FolderTests]:
    """Return the resources servers called `names`, or with `every` all that have an audit.py."""
    from nemo_gym.cli.shared.verifiers import has_audit
    from nemo_gym.config.environment_sources import refuse_source_names
    from nemo_gym.launch.folder_tests import find_folder_tests, folder_tests_of

    roots = component_search_roots()
    if every == bool(names):
        raise options.UsageError("needs either NAMEs or --all", where="gym env audit", fix="gym env audit mcqa")
    if not every:
        refuse_source_names(names)
        folder_names = [name.removeprefix(f"{RESOURCES}/").strip("/") for name in names]
        return [folder_tests_of(f"{RESOURCES}/{name}", roots) for name in folder_names]
    servers = [server for server in find_folder_tests(roots, documented=False) if has_audit(server)]
    if not servers:
        raise ConfigError("no resources server has an audit.py", where=", ".join(map(str, roots)))
    return servers


def _print_audits(audits: Mapping[str, Audit], *, as_json: bool) -> None:
    """Print a table with a line for each server, then the findings of each; or everything as JSON."""
    from nemo_gym.authoring.audit_result import AuditResult
    from nemo_gym.cli.shared.verifiers import print_findings

    if as_json:
        servers = [{"name": name, **audit.as_dict()} for name, audit in audits.items()]
        output.write_json({"passed": all(server["passed"] for server in servers), "servers": servers})
        return
    rows: list[Sequence[str]] = [HEADINGS]
    for name, audit in audits.items():
        if not isinstance(audit, AuditResult):
            rows.append((name, *["-"] * (len(HEADINGS) - 2), "not audited"))
            continue
        facts = audit.as_dict()
        judge = facts["judge_failures_scored"] if "judge" in audit.checks else "-"
        cells = [*(facts[count] for count in COUNTS), judge, facts["without_verdict"], f"{facts['verify_p50_ms']:.2f}"]
        rows.append((name, *map(str, cells), "clean" if audit.is_clean else "findings"))
    output.write_table(rows)
    for audit in audits.values():
        print_findings(audit)
    output.write(f"{sum(audit.is_clean for audit in audits.values())} of {len(audits)} clean")
