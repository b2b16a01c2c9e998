"""The result of an audit, as a dictionary and as the audit section of a README."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError

Check = Literal["oracle", "odd form", "wrong answer", "cheat", "malformed row", "repeat", "judge"]
BEGIN, END = "<!-- audit -->", "<!-- /audit -->"
README_LINES: dict[Check, str] = {
    "oracle": "the oracle scores full",
    "odd form": "right answers in odd forms score full",
    "wrong answer": "close but wrong answers do not",
    "cheat": "cheats pay nothing",
    "malformed row": "malformed rows are a 422",
    "repeat": "20 at once get the same verdict",
    "judge": "a judge without a verdict is a failure, not a zero",
}


@dataclass(frozen=True)
class Finding:
    """A case whose outcome is not the expected one."""

    check: Check
    case: str
    row: int | None
    """Number of the row, counted from 0; example rows are before generated ones."""
    expected: str
    actual: str
    reply: str = ""
    is_scored: bool = True
    """False if the verifier returned no verdict."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, where `actual` is called `found`."""
        return {"found" if key == "actual" else key: value for key, value in asdict(self).items()}


@dataclass
class AuditResult:
    """Counts and findings of one audit; an audit in progress adds to them."""

    name: str
    rows: int
    seed: int
    checks: dict[Check, int] = field(default_factory=dict)
    """Number of cases per check."""
    findings: list[Finding] = field(default_factory=list)
    excused: dict[str, str] = field(default_factory=dict)
    """Cases that the folder's `EXCUSED` allows, with the reason."""
    verify_p50: float = 0.0
    """Median seconds of verifying the oracle, without concurrency."""
    most_for_a_cheat: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def count_findings(self, *checks: Check) -> int:
        return sum(finding.check in checks for finding in self.findings)

    def count_wrong_verdicts(self, *checks: Check) -> int:
        """Count the findings of these checks in which the verifier returned a verdict."""
        return sum(finding.is_scored and finding.check in checks for finding in self.findings)

    @property
    def without_verdict(self) -> int:
        """Number of findings in which the verifier returned no verdict: errors and failures."""
        return sum(not finding.is_scored for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it and as `verifier_process` sends it to the command."""
        return {
            "name": self.name,
            "passed": self.is_clean,
            "rows": self.rows,
            "seed": self.seed,
            "cases": sum(self.checks.values()),
            "false_positives": self.count_wrong_verdicts("wrong answer"),
            "false_negatives": self.count_wrong_verdicts("oracle", "odd form"),
            "cheats_paid": self.count_wrong_verdicts("cheat"),
            "flips": self.count_findings("repeat"),
            "malformed_rows_accepted": self.count_findings("malformed row"),
            "judge_failures_scored": self.count_findings("judge"),
            "without_verdict": self.without_verdict,
            "verify_p50_ms": round(self.verify_p50 * 1000, 3),
            "most_for_a_cheat": self.most_for_a_cheat,
            "checks": dict(self.checks),
            "excused": dict(self.excused),
            "offences": [finding.as_dict() for finding in self.findings],
        }


def result_from_dict(fields: Mapping[str, Any]) -> AuditResult:
    """Rebuild a result from `AuditResult.as_dict`."""
    unchanged = {key: fields[key] for key in ("name", "rows", "seed", "checks", "excused", "most_for_a_cheat")}
    findings = [Finding(actual=finding.pop("found"), **finding) for finding in map(dict, fields["offences"])]
    return AuditResult(**unchanged, findings=findings, verify_p50=fields["verify_p50_ms"] / 1000)


def readme_section(result: AuditResult) -> str:
    """Return the audit section of a README. It contains no times, so that it is the same on every machine."""
    lines = [BEGIN, f"`gym env audit {result.name}`, {result.rows} rows:", "", "| | cases | off |", "|---|---:|---:|"]
    texts = dict(README_LINES)
    if result.most_for_a_cheat:
        texts["cheat"] = f"cheats pay at most {result.most_for_a_cheat:g}"
    cases = {check: count for check, count in result.checks.items() if count}
    lines += [f"| {texts[check]} | {count} | {result.count_findings(check)} |" for check, count in cases.items()]
    if result.excused:
        lines += ["", *(f"- _{case}_ may pay: {reason}" for case, reason in sorted(result.excused.items()))]
    return "\n".join([*lines, END])


def find_section(text: str, path: Path) -> tuple[int, int] | None:
    """Return the start and end of the audit section in the text of a README; None if it has no such section.

    Raises:
        ConfigError: the section has no end marker.
    """
    start = text.find(BEGIN)
    if start < 0:
        return None
    end = text.find(END, start)
    if end < 0:
        raise ConfigError(f"has {BEGIN} without {END}", where=str(path))
    return start, end + len(END)


def update_readme(path: Path, result: AuditResult) -> bool:
    """Replace the audit section of a README, or add it below `## Proof`; return whether the file changed.

    Raises:
        ConfigError: the README has neither an audit section nor `## Proof`.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    span, section = find_section(text, path), readme_section(result)
    heading = "## Proof\n"
    if span is not None:
        updated = text[: span[0]] + section + text[span[1] :]
    elif heading in text:
        updated = text.replace(heading, f"{heading}\n{section}\n", 1)
    else:
        raise ConfigError(f"has neither {BEGIN} … {END} nor '## Proof'", where=str(path), fix="add one of them")
    if updated != text:
        with whole_file(path) as stream:
            stream.write(updated.encode())
    return updated != text
