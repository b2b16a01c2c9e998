"""Commands in the documentation work as written, against the offline models.

The `bash` blocks of a page run in order in an empty folder. Commands that need a key or never end are shown as
`console` blocks, which do not run.
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
MAX_SECONDS = 500  # dozens of commands, on a machine that may do other things
pytestmark = pytest.mark.timeout(MAX_SECONDS + 60)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_work_in_order(page: Path, tmp_path: Path) -> None:
    """A newcomer stops at the first command that fails."""
    script = "\n".join(BLOCK.findall(page.read_text()))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM", "COV_"))}
    env |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / ".cache"),
        "XDG_RUNTIME_DIR": str(tmp_path),  # hide the runs of other tests
        "COLUMNS": "120",
    }
    folder = tmp_path / "work"
    folder.mkdir()
    process = subprocess.Popen(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        pytest.fail(f"still running after {MAX_SECONDS} s:\n{printed[-3000:]}")
    assert process.returncode == 0, printed[-4000:]
