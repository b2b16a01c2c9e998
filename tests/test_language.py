"""Names and prose follow CONTRIBUTING.md and docs/glossary.md."""

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools import language

ROOT = Path(__file__).resolve().parents[1]
TERM = re.compile(r"^\| ([^|]+?) \| [^|]+ \|$", re.MULTILINE)
DEPENDENT_HELP = re.compile(r"^(?:the same|likewise|as above|also|which|what|whether|how|ditto)\b", re.IGNORECASE)
MIN_HELP_WORDS = 2


@cache
def all_violations() -> tuple[language.Violation, ...]:
    return tuple(language.find_violations())


def matching(words: str) -> list[str]:
    return [str(violation) for violation in all_violations() if re.search(words, violation.problem)]


def test_no_module_class_or_function_is_named_by_one_participle() -> None:
    """A listing of participles cannot be read, and a stranger cannot find the code with grep."""
    assert not matching("is named by one participle")


def test_locals_and_parameters_name_what_they_hold() -> None:
    """`found` and `given` make every reader look up what was found or given."""
    assert not matching("does not say what it holds")


def test_no_class_name_is_defined_twice() -> None:
    """Two classes of one name make grep and tracebacks ambiguous."""
    assert not matching("is also defined at")


def test_prose_avoids_the_words_that_hide_the_subject() -> None:
    """Docstrings, errors and help name who does what."""
    assert not matching("banned words")


def test_docstrings_open_with_an_imperative() -> None:
    """The first line of a docstring stands alone in an editor's tooltip."""
    assert not matching("use an imperative")


def test_every_test_says_why_its_behaviour_matters() -> None:
    """Without the reason, a maintainer cannot decide whether a failing test or the change is wrong."""
    assert not matching("has no docstring")


def test_documentation_avoids_the_same_words() -> None:
    """Pages and code speak with one voice."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    violations = [
        f"{page.relative_to(ROOT)}: {match.group()!r}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for expression in language.BANNED_PROSE.values()
        for match in expression.finditer(page.read_text(encoding="utf-8"))
    ]

    assert not violations


def help_lines(parser: argparse.ArgumentParser, command: str) -> Iterator[tuple[str, str]]:
    """Yield every flag of a parser and its subcommands with its help text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"{command} {choice.dest}", choice.help or ""
            for name, child in action.choices.items():
                yield from help_lines(child, f"{command} {name}")
        elif action.help is not argparse.SUPPRESS:
            flag = "/".join(action.option_strings) or action.metavar or action.dest
            yield f"{command} {flag}", action.help or ""


def test_every_help_line_stands_alone() -> None:
    """People read one line of `--help`, not the page."""
    from nemo_gym.cli.parser import GROUPS, TOP_LEVEL_COMMANDS, build_parser

    commands = [[group, name] for group, (_, names) in GROUPS.items() for name in names]
    commands += [[name] for name in TOP_LEVEL_COMMANDS]
    lines = {line for words in commands for line in help_lines(build_parser(words)[0], "gym")}
    weak = [
        f"{flag}: {text!r}"
        for flag, text in sorted(lines)
        if DEPENDENT_HELP.search(text) or len(text.split()) < MIN_HELP_WORDS
    ]

    assert len(lines) > 200
    assert not weak


def test_the_glossary_defines_each_term_once() -> None:
    """One word, one meaning."""
    terms = [
        term.strip()
        for cell in TERM.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
        if cell != "term"
        for term in cell.split(",")
    ]

    assert len(terms) >= 40
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize(
    ("name", "is_bare"),
    [("told", True), ("_answered", True), ("Prepared", True), ("apart", True), ("seed", False), ("retry", False),
     ("run_tests", False), ("RolloutFailed", False), ("test_found", False)],
)  # fmt: skip
def test_bare_participles_are_recognised(name: str, is_bare: bool) -> None:
    """A check that recognises nothing would pass forever."""
    assert language.is_bare_participle(name) is is_bare


def test_violations_are_found_in_a_bad_file(tmp_path: Path) -> None:
    """The checks above can fail: each kind of violation is reported."""
    path = tmp_path / "told.py"
    path.write_text(
        "class Given:\n"
        '    """Whoever."""\n'
        "def shown(said):\n"
        '    """What nobody sees."""\n'
        "    found = said\n"
        "    return found\n"
    )

    problems = {
        violation.problem for check in (language.check_names, language.check_prose) for violation in check(path)
    }

    assert {"module 'told' is named by one participle or adverb", "class 'Given' is named by one participle or adverb",
            "function 'shown' is named by one participle or adverb", "parameter 'said' does not say what it holds",
            "local 'found' does not say what it holds", "banned words: 'nobody'", "banned words: 'Whoever'",
            "docstring of shown opens with 'What'; use an imperative"} <= problems  # fmt: skip


def test_tests_without_a_docstring_are_found(tmp_path: Path) -> None:
    """The check above can fail, and helpers without a docstring do not trigger it."""
    path = tmp_path / "tests" / "test_sums.py"
    path.parent.mkdir()
    path.write_text(
        "def helper(): ...\n"
        "def test_first(): ...\n"
        "class TestSums:\n"
        "    async def test_second(self): ...\n"
        "    def test_third(self):\n"
        '        """Users rely on it."""\n'
    )

    assert [
        (violation.line, violation.problem.split("'")[1]) for violation in language.check_test_docstrings(path)
    ] == [
        (2, "test_first"),
        (4, "test_second"),
    ]
