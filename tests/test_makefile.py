"""`make` and `dev.py` have the same commands."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_command_of_dev_py_is_a_target() -> None:
    """`make chaos` must do what the documentation promises."""
    targets = re.search(r"^COMMANDS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.search(r"^COMMANDS = \{(.*?)^\}", (ROOT / "dev.py").read_text(), re.MULTILINE | re.DOTALL)

    assert targets is not None and listed is not None
    assert targets[1].split() == re.findall(r'"([\w-]+)":', listed[1])
