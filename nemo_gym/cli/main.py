"""The entry point of `gym` and `ng`: parse the command line, run one command, report its errors."""

import gc
import logging
import os
import sys
from collections.abc import Sequence

from nemo_gym.cli.parser import build_parser, check_command, check_flags, find_leaf
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.config.secret_text import MaskingFormatter
from nemo_gym.errors import GymError, raising_file_problems

INTERRUPTED = 130

IMPORT_GC_THRESHOLD = (50_000, 20, 20)
"""Imports make half a million objects and no garbage; with the default threshold they take a seventh longer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _open_standard_files()
    initial_gc_threshold = gc.get_threshold()
    if argv is None:  # this process runs nothing else
        _augment_sys_path(with_working_directory=False)
        gc.set_threshold(*IMPORT_GC_THRESHOLD)
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("NEMO_GYM_DEBUG"))
    words = [word for word in words if word != "--debug"]  # argparse accepts it only before the command
    check_command(words)
    parser, command = build_parser(words)
    args, overrides = parser.parse_known_args(words)
    leaf = find_leaf(parser, [args.group or "", getattr(args, "command", None) or ""])
    check_flags(leaf, overrides)
    args.overrides, args.initial_gc_threshold, args.debug = overrides, initial_gc_threshold, debug
    if args.version:
        from nemo_gym.cli.doctor import print_version

        print_version(as_json=args.version_json)
        return 0
    if command is None:
        output.write(leaf.format_help())
        return 1
    args.verbose = args.verbose_before_command or args.verbose
    if args.verbose and args.verbose_shows_log:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
        logging.getLogger("nemo_gym").setLevel(logging.DEBUG)
    try:
        with raising_file_problems():
            return int(command.run(args))
    except GymError as error:
        if debug:
            raise
        output.report_gym_error(error)
        return error.exit_status
    except KeyboardInterrupt:
        output.notify("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug or not _is_interrupt(error):
            raise
        output.notify("interrupted")
        return INTERRUPTED


def _is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C caused the error: during an import, Python 3.11 wraps it in a RuntimeError."""
    return isinstance(error, RuntimeError | ImportError) and isinstance(error.__cause__, KeyboardInterrupt)


def _open_standard_files() -> None:
    """Open /dev/null in place of closed standard files (`gym ... >&-`); otherwise a socket could get descriptor 1."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `descriptor`


if __name__ == "__main__":
    raise SystemExit(main())
