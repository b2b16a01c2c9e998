"""Generated reference pages match the code."""

import sys

import pytest

from tools import reference


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python format help texts differently")
@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    """A stale page misleads its readers; `python -m tools.reference` generates it."""
    assert name not in reference.stale_pages([name])
