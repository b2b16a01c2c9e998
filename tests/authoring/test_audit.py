"""An audit finds the faults of a verifier, and nothing in a good one."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.authoring.audit import run_audit
from nemo_gym.authoring.audit_result import AuditResult
from nemo_gym.errors import ConfigError
from tests.authoring.audit_world import AUDIT, tree, write_folder

__all__ = ["tree"]


@pytest.fixture(autouse=True)
def _unload_modules(tree: Path) -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("resources_servers.words")]:
        del sys.modules[name]


def audit(folder: Path, rows: int = 3, seed: int = 1) -> AuditResult:
    return asyncio.run(run_audit(folder, rows=rows, seed=seed))


def cases(result: AuditResult, check: str) -> set[str]:
    return {finding.case for finding in result.findings if finding.check == check}


def test_a_good_verifier_is_clean(tree: Path) -> None:
    """The counts show that every check ran."""
    result = audit(write_folder(tree))

    assert result.findings == []
    assert result.is_clean
    assert result.checks["oracle"] == result.rows == 3
    assert result.checks["odd form"] == 3 * 22
    assert result.checks["wrong answer"] == 6
    assert result.checks["cheat"] > 3 * 15
    assert result.checks["repeat"] == 60
    assert result.checks["malformed row"] >= 4
    assert "judge" not in result.checks
    assert result.verify_p50 > 0


def test_a_verifier_that_pays_for_anything_is_reported(tree: Path) -> None:
    """False positives and cheats that pay are what a policy learns first."""
    result = audit(write_folder(tree, settings="      lenient: true\n"))
    fields = result.as_dict()

    assert fields["false_positives"] == 6
    assert {"silence", "the question", "every number", "a forged result", "both"} <= cases(result, "cheat")
    assert fields["cheats_paid"] == result.checks["cheat"]
    assert fields["false_negatives"] == 0
    assert not fields["passed"]


def test_a_right_answer_without_reward_is_reported(tree: Path) -> None:
    """Odd forms and the oracle count: a right answer judged wrong is a lesson lost."""
    result = audit(write_folder(tree, fault="reward *= body.response.output_text.startswith('The')"))

    assert result.as_dict()["false_negatives"] == 3 * 22
    assert cases(result, "oracle") == set()

    nothing = audit(write_folder(tree, name="words_two", fault="reward = 0.0"), rows=1)
    assert cases(nothing, "oracle") == {"the oracle"}


def test_a_verdict_that_changes_is_a_flip(tree: Path) -> None:
    """Twenty verdicts at once must agree: grading has no memory."""
    fault = "self._verdicts += 1; reward = reward if self._verdicts < 95 or self._verdicts % 3 else 0.5"
    result = audit(write_folder(tree, fault=fault))

    assert result.count_findings("repeat") > 0


def test_a_broken_row_that_is_accepted_is_reported(tree: Path) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    folder = write_folder(tree)
    app = folder / "app.py"
    app.write_text(app.read_text().replace("expected_word: str", "expected_word: object = ''"))
    extra = 'MALFORMED = [("a word of digits", lambda row: {**row, "expected_word": "7"})]\n'
    (folder / "audit.py").write_text(AUDIT + extra)

    assert cases(audit(folder), "malformed row") == {"expected_word is of another type", "a word of digits"}


def test_a_crash_is_an_error_and_not_a_verdict(tree: Path) -> None:
    """It counts as neither false positive nor cheat, because the verifier gave no verdict."""
    result = audit(write_folder(tree, fault="assert words"), rows=1)
    fields = result.as_dict()

    assert "silence" in cases(result, "cheat")
    assert fields["cheats_paid"] == fields["false_positives"] == 0
    assert fields["without_verdict"] == len(result.findings) > 0
    assert all("status 500" in finding.actual for finding in result.findings)


@pytest.mark.parametrize("reward", ["float('nan')", "float('inf')"])
def test_a_reward_that_is_not_finite_is_an_error(tree: Path, reward: str) -> None:
    """A trainer cannot use it."""
    result = audit(write_folder(tree, fault=f"reward = {reward}"), rows=1)

    assert result.as_dict()["without_verdict"] == result.as_dict()["cases"] - sum(
        result.checks[check] for check in ("malformed row", "repeat")
    )


def test_tools_are_called_in_the_session_before_the_verdict(tree: Path) -> None:
    """Environments with state are audited as an agent would play them."""
    act = """
from nemo_gym.authoring.model_replies import message, tool_call

async def act(row, reply, call):
    if not isinstance(reply, str):
        assert await call("/ring", {}) == {"rung": 1}

def with_call(row):
    return [*tool_call("ring", {}, {"rung": 1}), message(row["expected_word"])]

def oracle(row):
    return with_call(row)
"""
    generate = "from resources_servers.words.generate_words import rows as word_rows\n\n\ndef rows(count, *, seed):\n"
    generate += '    return [{**row, "calls_wanted": 1} for row in word_rows(count, seed=seed)]\n'
    folder = write_folder(tree, audit=AUDIT + act)
    (folder / "generate.py").rename(folder / "generate_words.py")
    (folder / "generate.py").write_text(generate)
    result = audit(folder)

    assert cases(result, "oracle") == set()
    assert result.count_findings("odd form") == 3 * 22  # texts without a tool call


def test_an_excused_case_is_listed_and_is_not_a_finding(tree: Path) -> None:
    """Some cheats are legitimate in some environments, and the folder must give the reason."""
    excuse = """
EXCUSED = {
    "silence": "nothing to say is fine here",
    "both": lambda row: "odd" if row["expected_word"][-1] == "1" else None,
}
"""
    result = audit(write_folder(tree, settings="      lenient: true\n", audit=AUDIT + excuse))

    assert result.excused == {"silence": "nothing to say is fine here", "both": "odd"}
    assert "silence" not in cases(result, "cheat")
    assert [finding.row for finding in result.findings if finding.case == "both"] == [0, 2]


def test_partial_rewards_and_other_scales_can_be_declared(tree: Path) -> None:
    """Games pay from -1 to 1, translations in part."""
    scale = "FULL_REWARD = lambda row: 2.0\nMOST_FOR_A_CHEAT = -1.0\nMOST_FOR_WRONG = -0.5\n"
    result = audit(write_folder(tree, fault="reward = 3 * reward - 1", audit=AUDIT + scale))

    assert result.findings == []


def test_a_wrong_answer_may_earn_a_part_unless_limited(tree: Path) -> None:
    """A part of the reward is not a false positive; the full reward is."""
    fault = "reward = reward or (0.5 if words and words[-1].endswith('s') else 0.0)"

    assert cases(audit(write_folder(tree, fault=fault)), "wrong answer") == set()

    strict = AUDIT + "MOST_FOR_WRONG = 0.4\n"
    result = audit(write_folder(tree, name="words_strict", fault=fault, audit=strict))
    assert cases(result, "wrong answer") == {"wrong answer 0"}


def test_too_few_odd_forms_are_a_finding(tree: Path) -> None:
    """A handful of forms must not look like proof."""
    result = audit(
        write_folder(tree, audit=AUDIT.replace("forms + [form.upper() for form in forms]", "forms[:2]")), rows=2
    )

    assert cases(result, "odd form") == {"right answers in odd forms"}
    assert "4 different ones" in result.findings[0].actual


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("audit.py", "has no audit.py"),
        ("oracle", r"defines no oracle\(row\)"),
        ("import", "cannot be imported: ZeroDivisionError"),
        ("rows", "there are only 50 words"),
        ("server", "defines 0 server classes"),
        ("config", "lenient"),
    ],
)
def test_a_folder_that_cannot_be_audited_is_one_clear_error(tree: Path, broken: str, problem: str) -> None:
    """The author must see the cause before any case runs."""
    folder = write_folder(tree, settings="      lenient: 17\n" if broken == "config" else "")
    if broken == "audit.py":
        (folder / "audit.py").unlink()
    elif broken == "oracle":
        (folder / "audit.py").write_text("ORACLE = 1\n")
    elif broken == "import":
        (folder / "audit.py").write_text("1 / 0\n")
    elif broken == "server":
        (folder / "app.py").write_text("SERVER = 1\n")

    with pytest.raises(ConfigError, match=problem):
        audit(folder, rows=51 if broken == "rows" else 2)


def test_the_examples_come_before_generated_rows_and_the_seed_counts(tree: Path) -> None:
    """Users see the examples first."""
    folder = write_folder(tree)
    (folder / "data").mkdir()
    row = '{"responses_create_params": {"input": "Which?"}, "expected_word": "yes", "agent_ref": {"name": "a"}}\n'
    (folder / "data" / "example.jsonl").write_text(row)

    assert audit(folder, rows=0).rows == 1
    assert audit(folder, rows=2).rows == 3
    (folder / "data" / "example.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"example\.jsonl:1"):
        audit(folder)
