"""Search finds what was meant, spelt as people spell."""

import pytest

from nemo_gym.catalog.fuzzy import matches


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("math", "math_with_judge"),
        ("WEATHER", "the weather tool"),
        ("arithmatic", "arithmetic"),
        ("calender", "my-calendar"),
        ("judge", "math_with_judge"),
    ],
)
def test_a_word_that_is_near_is_found(query: str, field: str) -> None:
    assert matches(query, ["something else", field])


@pytest.mark.parametrize("field", ["code", "sql", ""])
def test_a_word_that_is_not_near_is_not(field: str) -> None:
    """A search that finds everything finds nothing."""
    assert not matches("arithmetic", [field])
