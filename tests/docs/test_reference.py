"""Pages that are written from the code are as new as the code."""

import sys

import pytest

from tools import reference


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python lay help texts out differently")
@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_fresh(name: str) -> None:
    """`python -m tools.reference` writes it anew."""
    assert name not in reference.stale_pages([name])


def test_every_key_that_is_checked_is_described() -> None:
    """A key without a description is missing from the reference page, where users look for it."""
    from nemo_gym.config.key_meanings import MEANINGS
    from nemo_gym.config.keys import CHECKED

    assert CHECKED.keys() <= MEANINGS.keys()
