"""A result survives serialisation, and a README shows it in its section."""

from pathlib import Path

import pytest

from nemo_gym.authoring.audit_result import AuditResult, Finding, readme_section, result_from_dict, update_readme
from nemo_gym.errors import ConfigError

CLEAN = AuditResult("words", 5, 1, {"oracle": 5, "odd form": 40, "cheat": 90}, [], {}, 0.0005)
OFF = AuditResult(
    "words",
    5,
    1,
    {"oracle": 5, "wrong answer": 9},
    [
        Finding("wrong answer", "wrong answer 0", 2, "less than 1", "reward 1", "'x'"),
        Finding("wrong answer", "wrong answer 1", 2, "less than 1", "status 500", "'y'", is_scored=False),
    ],
    {"silence": "is golden"},
    0.001,
)


def test_a_result_survives_serialisation() -> None:
    """The audit runs in another interpreter."""
    assert result_from_dict(OFF.as_dict()) == OFF
    assert OFF.as_dict()["false_positives"] == 1
    assert OFF.as_dict()["without_verdict"] == 1


def test_a_readme_section_lists_the_checks_and_nothing_about_the_machine() -> None:
    """The same code gives the same text everywhere."""
    text = readme_section(OFF)

    assert "| close but wrong answers do not | 9 | 2 |" in text
    assert "_silence_ may pay: is golden" in text
    assert "ms" not in text.lower()


def test_the_section_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    """People write the rest of a README."""
    readme = tmp_path / "README.md"
    readme.write_text("# Words\n\n## Proof\n\nSee tests.\n\n## Licensing information\n")

    assert update_readme(readme, OFF)
    assert update_readme(readme, CLEAN)
    assert not update_readme(readme, CLEAN)

    text = readme.read_text()
    assert text.startswith(f"# Words\n\n## Proof\n\n{readme_section(CLEAN)}\n")
    assert text.endswith("\nSee tests.\n\n## Licensing information\n")


@pytest.mark.parametrize("text", ["# Words\n", "## Proof\n<!-- audit -->\nhalf\n"])
def test_a_readme_without_a_section_is_one_clear_error(tmp_path: Path, text: str) -> None:
    """The file stays unchanged."""
    readme = tmp_path / "README.md"
    readme.write_text(text)

    with pytest.raises(ConfigError):
        update_readme(readme, CLEAN)
    assert readme.read_text() == text
