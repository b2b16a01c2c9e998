"""Check that every shipped environment passes its audit and that its README has the result: `python3 dev.py proofs`."""

import asyncio
import logging
from pathlib import Path

import pytest

from nemo_gym.authoring.audit import run_audit
from nemo_gym.authoring.audit_result import readme_section
from nemo_gym.launch.requirements import unmet_requirements

FOLDERS = sorted(
    path.parent
    for path in (Path(__file__).parents[1] / "resources_servers").glob("*/audit.py")
    if not path.parent.is_symlink()
)


@pytest.mark.timeout(600)  # coding_task starts a box for each of its candidates
@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_the_audit_has_no_findings_and_the_readme_has_its_result(folder: Path) -> None:
    """A result that is older than the code proves nothing."""
    if unmet_requirements(folder):
        pytest.skip("needs packages that are not in this environment")
    logging.getLogger("nemo_gym").setLevel(logging.ERROR)  # an audit sends thousands of broken rows on purpose
    try:
        result = asyncio.run(run_audit(folder))
    finally:
        logging.getLogger("nemo_gym").setLevel(logging.NOTSET)

    assert result.findings == []
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert readme_section(result) in text, f"run: gym env audit {folder.name} --update-readme"
