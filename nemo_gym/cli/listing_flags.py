"""Flags of `gym list` and `gym search`."""

import argparse

KINDS = ("benchmarks", "environments", "agents", "models", "resources-servers")
"""What can be listed."""


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this one, in detail")


def add_listing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--search-dir", action="append", default=[], metavar="DIR", help="look here first; repeatable")
