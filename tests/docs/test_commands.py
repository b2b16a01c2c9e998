"""Commands in the documentation work as they stand, one page after the other, against the offline models.

A block of `bash` is typed for real, in order, in an empty folder; what cannot be (a key is needed, it never ends) is
shown as `console` instead.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if BLOCK.search(page.read_text())
]
LONGEST_SECONDS = 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_work_in_order(page: Path, tmp_path: Path) -> None:
    """The first command that fails a newcomer is the last one they type."""
    script = "\n".join(BLOCK.findall(page.read_text()))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM", "COV_"))}
    env |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / ".cache"),
        "XDG_RUNTIME_DIR": str(tmp_path),  # runs of others are none of the reader's
        "COLUMNS": "120",
    }
    folder = tmp_path / "work"
    folder.mkdir()
    process = subprocess.Popen(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"still running after {LONGEST_SECONDS} s:\n{output[-3000:]}")
    assert process.returncode == 0, output[-4000:]
