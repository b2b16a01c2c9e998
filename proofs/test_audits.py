"""Every shipped environment is clean, and its README says so in today's words. Run by `python3 dev.py proofs`."""

import asyncio
import logging
from pathlib import Path

import pytest

from nemo_gym.environment.audit import audited
from nemo_gym.environment.audit_result import readme_part
from nemo_gym.launch.requirements import unsatisfied

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[1] / "resources_servers").glob("*/audit.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_the_audit_is_clean_and_the_readme_carries_its_result(folder: Path) -> None:
    """A proof that is older than the code proves nothing."""
    if unsatisfied(folder):
        pytest.skip("needs packages that are not in this environment")
    logging.getLogger("nemo_gym").setLevel(logging.ERROR)  # thousands of refused rows are refused on purpose
    try:
        result = asyncio.run(audited(folder))
    finally:
        logging.getLogger("nemo_gym").setLevel(logging.NOTSET)

    assert result.offences == []
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert readme_part(result) in text, f"run: gym env audit {folder.name} --update-readme"
