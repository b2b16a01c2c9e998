"""Look at rollouts in the browser, or on the terminal with --text.

PATH is a file of rollouts, or a folder with some; several are shown side by side and can be compared. A run that is
still going on is followed. TASK or TASK:REPEAT after the paths shows one rollout (with --text).
"""

import argparse
import re
from collections.abc import Sequence

PLACE = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)
LEGACY_KEY = "+jsonl_fpath="


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="rollouts, or a folder with some")
    parser.add_argument("--text", action="store_true", help="print to the terminal instead")
    parser.add_argument("--failed", action="store_true", help="only rollouts that failed (with --text, --export)")
    parser.add_argument("--where", default="", metavar="FILTER", help='only these, such as "reward < 1 and turns > 2"')
    parser.add_argument("--search", default="", metavar="WORDS", help="only those with these words (with --text)")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="rows to print with --text (default: 50)")
    parser.add_argument("--export", metavar="DIR", help="write a bundle that opens from disk, and end")
    parser.add_argument("--port", type=int, default=0, metavar="PORT", help="where to serve (default: any free port)")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="other than loopback asks for a token")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--json", action="store_true", help="with --text: print JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from nemo_gym.cli import output, viewing  # what they import has no place in `gym --help`
    from nemo_gym.view.runs import find_runs

    paths = [word.removeprefix(LEGACY_KEY) for word in (*args.paths, *rest)]
    place = PLACE.fullmatch(paths[-1]) if len(paths) > 1 and args.text else None
    if place is not None:
        paths = paths[:-1]
    if not paths:
        output.error("name the rollouts to look at: gym view results/rollouts.jsonl")
        return 2
    where = " and ".join(f"({part})" for part in (args.where, 'outcome == "failed"' if args.failed else "") if part)
    runs = find_runs(paths)
    if args.export:
        return viewing.write_bundle(runs, args.export, where)
    if args.text and place is not None:
        return viewing.print_rollout(runs, int(place.group(1)), place.group(2), as_json=args.json)
    if args.text:
        return viewing.print_table(runs, where, args.search, args.limit, as_json=args.json)
    return viewing.serve(runs, host=args.host, port=args.port, browser=not args.no_browser)
