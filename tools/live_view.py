"""Draw docs/images/live.svg, the README's picture: `python -m tools.live_view`.

The picture shows a real `gym eval run` in a pseudo-terminal, half-way and at its end. The scripted model adds numbers,
mostly correctly, with delays.
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
REDRAW = re.compile(r"(?:\r?\x1b\[2K|\x1b\[1A|\r|\x1b\[\?25[lh])+")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
REMOTE_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
REPORT_START = re.compile(r"^\d+ scored")


def answer(scene: Any) -> dict[str, Any]:
    """Return the requested sum; one in eight is off by one and some are slow."""
    question = str(scene.conversation[-1].get("content", ""))
    left, right = (int(number) for number in re.findall(r"\d+", question)[-2:])
    chance = scene.chance
    error = chance.random() < 0.12
    seconds = 9.0 if chance.random() < 0.06 else chance.uniform(0.4, 1.6)
    return {"text": f"{left} + {right} = {left + right + error}", "delay_seconds": seconds}


def record_terminal(words: list[str], folder: Path) -> str:
    """Run a command in a pseudo-terminal; return everything it writes."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=folder, env=env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 65536):
            output += chunk
    except OSError:  # raised by Linux when the last writer has closed the terminal
        pass
    os.close(controller)
    if process.wait():
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}:\n{output.decode(errors='replace')}")
    return output.decode()


def frames(output: str) -> tuple[list[list[str]], list[str]]:
    """Return the successive states of the live view, and the lines of the final report."""
    pieces = [CONTROL.sub("", piece).replace("\r", "") for piece in REDRAW.split(output.replace("\r\n", "\n"))]
    shown = [piece.strip("\n").split("\n") for piece in pieces if "running" in piece]
    last = [line for piece in pieces if "running" not in piece for line in piece.split("\n")]
    start = next(number for number, line in enumerate(last) if REPORT_START.match(line))
    return shown, last[start:]


def draw_picture(live: list[str], report: list[str]) -> str:
    """Return the picture as SVG."""
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
        output = record_terminal([*words, "+num_repeats_add_seed=true"], folder)  # so that repeats differ
    shown, report = frames(output)
    fullest = max(shown[len(shown) // 3 : len(shown) * 4 // 5], key=len)
    PICTURE.write_text(draw_picture(fullest, [line.rstrip() for line in report if line.strip()][:9]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
