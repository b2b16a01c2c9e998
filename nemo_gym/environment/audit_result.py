"""What an audit found: as data, and as the part of a README that says so."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from nemo_gym.catalog.files import whole_file
from nemo_gym.errors import ConfigError

Check = Literal["oracle", "odd form", "wrong answer", "cheat", "malformed row", "repeat", "judge"]
BEGIN, END = "<!-- audit -->", "<!-- /audit -->"
MEANINGS: dict[Check, str] = {
    "oracle": "the oracle scores full",
    "odd form": "right answers in odd forms score full",
    "wrong answer": "close but wrong answers do not",
    "cheat": "cheats pay nothing",
    "malformed row": "malformed rows are a 422",
    "repeat": "20 at once get the same verdict",
    "judge": "a judge without a verdict is a failure, not a zero",
}


@dataclass(frozen=True)
class Offence:
    """A case that did not come out as it must."""

    check: Check
    case: str
    row: int | None
    """Which row, counted from 0, the examples first."""
    expected: str
    found: str
    reply: str = ""
    is_scored: bool = True
    """Whether there was a verdict at all."""


@dataclass(frozen=True)
class AuditResult:
    """All that is known about one verifier."""

    name: str
    rows: int
    seed: int
    checks: Mapping[Check, int]
    """How many cases of each kind were tried."""
    offences: Sequence[Offence]
    excused: Mapping[str, str]
    """Cases that would be offences, had the folder not said why they are none."""
    verify_p50: float
    """Seconds of a verification of the oracle, one at a time."""
    most_for_a_cheat: float = 0.0
    """What the folder says that nothing is worth."""

    @property
    def passed(self) -> bool:
        return not self.offences

    def off(self, check: Check) -> int:
        """How many cases of a kind are off."""
        return sum(offence.check == check for offence in self.offences)

    def scored(self, *checks: Check) -> int:
        """How many cases of these kinds got a verdict, and a wrong one."""
        return sum(offence.is_scored and offence.check in checks for offence in self.offences)

    @property
    def without_verdict(self) -> int:
        """How many cases should have been judged and were not: errors and failures."""
        return sum(not offence.is_scored for offence in self.offences)

    def as_plain(self) -> dict[str, Any]:
        """As it is printed with --json and travels between processes."""
        return {
            "name": self.name,
            "passed": self.passed,
            "rows": self.rows,
            "seed": self.seed,
            "cases": sum(self.checks.values()),
            "false_positives": self.scored("wrong answer"),
            "false_negatives": self.scored("oracle", "odd form"),
            "cheats_paid": self.scored("cheat"),
            "flips": self.off("repeat"),
            "malformed_rows_accepted": self.off("malformed row"),
            "judge_failures_scored": self.off("judge"),
            "without_verdict": self.without_verdict,
            "verify_p50_ms": round(self.verify_p50 * 1000, 3),
            "most_for_a_cheat": self.most_for_a_cheat,
            "checks": dict(self.checks),
            "excused": dict(self.excused),
            "offences": [asdict(offence) for offence in self.offences],
        }


def from_plain(plain: Mapping[str, Any]) -> AuditResult:
    """What `as_plain` made, again."""
    offences = [Offence(**offence) for offence in plain["offences"]]
    named = {key: plain[key] for key in ("name", "rows", "seed", "checks", "excused", "most_for_a_cheat")}
    return AuditResult(**named, offences=offences, verify_p50=plain["verify_p50_ms"] / 1000)


def readme_part(result: AuditResult) -> str:
    """The result as the README carries it: nothing in it depends on the machine or the hour."""
    lines = [BEGIN, f"`gym env audit {result.name}`, {result.rows} rows:", "", "| | cases | off |", "|---|---:|---:|"]
    meanings = dict(MEANINGS)
    if result.most_for_a_cheat:
        meanings["cheat"] = f"cheats pay at most {result.most_for_a_cheat:g}"
    tried = {check: count for check, count in result.checks.items() if count}
    lines += [f"| {meanings[check]} | {count} | {result.off(check)} |" for check, count in tried.items()]
    if result.excused:
        lines += ["", *(f"- _{case}_ may pay: {why}" for case, why in sorted(result.excused.items()))]
    return "\n".join([*lines, END])


def part_of(text: str, path: Path) -> tuple[int, int] | None:
    """Where the audit's part of a README begins and ends; None if it has none.

    Raises:
        ConfigError: it begins and does not end.
    """
    start = text.find(BEGIN)
    if start < 0:
        return None
    end = text.find(END, start)
    if end < 0:
        raise ConfigError(f"has {BEGIN} without {END}", where=str(path))
    return start, end + len(END)


def update_readme(path: Path, result: AuditResult) -> bool:
    """Write the result into a README, in its place or under `## Proof`; whether anything changed.

    Raises:
        ConfigError: there is no place for it.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    place, part = part_of(text, path), readme_part(result)
    heading = "## Proof\n"
    if place is not None:
        updated = text[: place[0]] + part + text[place[1] :]
    elif heading in text:
        updated = text.replace(heading, f"{heading}\n{part}\n", 1)
    else:
        raise ConfigError(f"has neither {BEGIN} … {END} nor '## Proof'", where=str(path), fix="add one of them")
    if updated != text:
        with whole_file(path) as stream:
            stream.write(updated.encode())
    return updated != text
