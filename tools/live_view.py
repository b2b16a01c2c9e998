"""Draw the README's picture from the real thing: `python -m tools.live_view`.

A real `gym eval run` plays in a terminal of its own; what it shows half-way and what it says at the end become
docs/images/live.svg. The model is scripted: it adds, mostly right, and takes its time.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "live.svg"
COLUMNS, LINES = 92, 30
COMMAND = "gym eval run --environment arithmetic --config model.yaml --num-repeats 4 --concurrency 12"
MODEL = """\
policy_model:
  responses_api_models:
    scripted_model: {entrypoint: app.py, function: "tools.live_view:answer"}
"""
REDRAWN = re.compile(r"(?:\r?\x1b\[2K|\x1b\[1A|\r|\x1b\[\?25[lh])+")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
REMOTE_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
FIRST_REPORTED = re.compile(r"^\d+ scored")


def answer(scene: Any) -> dict[str, Any]:
    """The sum that is asked for; one in eight is off by one, some take long."""
    question = str(scene.conversation[-1].get("content", ""))
    left, right = (int(number) for number in re.findall(r"\d+", question)[-2:])
    chance = scene.chance
    wrong = chance.random() < 0.12
    seconds = 9.0 if chance.random() < 0.06 else chance.uniform(0.4, 1.6)
    return {"text": f"{left} + {right} = {left + right + wrong}", "delay_seconds": seconds}


def recorded(words: list[str], folder: Path) -> str:
    """Everything a command writes to its terminal."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=folder, env=env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = b""
    try:
        while chunk := os.read(controller, 65536):
            said += chunk
    except OSError:  # what Linux says when the last writer is gone
        pass
    os.close(controller)
    if process.wait():
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}:\n{said.decode(errors='replace')}")
    return said.decode()


def frames(said: str) -> tuple[list[list[str]], list[str]]:
    """What the screen showed, one after the other, and the lines that stayed at the end."""
    pieces = [CONTROL.sub("", piece).replace("\r", "") for piece in REDRAWN.split(said.replace("\r\n", "\n"))]
    shown = [piece.strip("\n").split("\n") for piece in pieces if "running" in piece]
    last = [line for piece in pieces if "running" not in piece for line in piece.split("\n")]
    start = next(number for number, line in enumerate(last) if FIRST_REPORTED.match(line))
    return shown, last[start:]


def drawn(live: list[str], report: list[str]) -> str:
    """The picture."""
    from rich.console import Console
    from rich.text import Text

    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - recorded, not shown
        console = Console(record=True, width=COLUMNS, file=nowhere, highlight=False)
        console.print(Text(f"$ {COMMAND}", style="green"))
        for number, line in enumerate(live):
            console.print(Text(line, style="bold" if not number else ""), no_wrap=True, overflow="ellipsis")
        console.print(Text("⋯", style="dim"))
        for line in report:
            console.print(Text(line), no_wrap=True, overflow="ellipsis")
        text = console.export_svg(title="gym eval run")
    return REMOTE_FONT.sub("", text)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.yaml").write_text(MODEL)
        words = [sys.executable, "-m", "nemo_gym.cli.main", *COMMAND.split()[1:]]
        said = recorded([*words, "+num_repeats_add_seed=true"], folder)  # so that repeats differ
    shown, report = frames(said)
    telling = max(shown[len(shown) // 3 : len(shown) * 4 // 5], key=len)
    PICTURE.write_text(drawn(telling, [line.rstrip() for line in report if line.strip()][:9]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
