"""In words, what differs in how two runs were made: data, verifier, prompt, sampling, model, agent, code.

The content of the identity files (`<stem>_run.json`) is compared. Other data or another verifier measure something
else, so the runs are not comparable; the other differences may be what the comparison is about, and are listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DATA, SELECTION, VERIFIER, PROMPT, SAMPLING, MODEL, AGENT, CODE = (
    "data", "selection", "verifier", "prompt", "sampling", "model", "agent", "code",
)  # fmt: skip
BREAKING = frozenset({DATA, VERIFIER})
MAX_DIFFERENCES = 40
LONGEST_VALUE = 60
_MISSING = "not set"
_NOT_COMPARED = frozenset({"limit", "selection"})
_KIND_OF_FOLDER = {"resources_servers": VERIFIER, "responses_api_models": MODEL, "responses_api_agents": AGENT}


@dataclass(frozen=True)
class RunDifference:
    """One difference in how two runs were made."""

    kind: str
    text: str

    @property
    def is_breaking(self) -> bool:
        """True if the rewards of the two runs measure different things."""
        return self.kind in BREAKING


def run_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[RunDifference]:
    """Return what differs between the identities of two runs, breaking differences first; empty if one is unknown."""
    if not first or not second:
        return []
    differences = [*_data(first, second), *_plan(first, second), *_servers(first, second), *_code(first, second)]
    differences.sort(key=lambda difference: not difference.is_breaking)
    return differences[:MAX_DIFFERENCES]


def _data(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[RunDifference]:
    one, two = first.get("rows"), second.get("rows")
    if one and two and one != two and _mapping(first.get("input")) and first.get("input") == second.get("input"):
        # Rows keep the number that they have in the whole file, so the tasks of both runs are the same ones.
        yield RunDifference(SELECTION, "other rows of the same file were selected: only the common tasks are compared")
    elif one and two and one != two:
        names = [_mapping(run.get("input")).get("name") for run in (first, second)]
        files = f" ({names[0]}, {names[1]})" if names[0] and names[1] and names[0] != names[1] else ""
        yield RunDifference(DATA, f"the input rows differ{files}: the same task number may be another task")


def _plan(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[RunDifference]:
    plans = [_mapping(run.get("plan")) for run in (first, second)]
    for name in sorted({*plans[0], *plans[1]} - _NOT_COMPARED):
        one, two = plans[0].get(name), plans[1].get(name)
        if name == "responses_create_params":
            yield from _each(SAMPLING, _mapping(one), _mapping(two))
        elif one != two:
            kind = PROMPT if name in ("prompt", "skills") else AGENT
            shown = "the prompt differs" if name == "prompt" else f"{name}: {_text(one)} → {_text(two)}"
            yield RunDifference(kind, shown)


def _servers(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[RunDifference]:
    kinds = {name: kind for run in (first, second) for name, kind in _kinds_of_servers(run).items()}
    servers = [_mapping(run.get("servers")) for run in (first, second)]
    for name in sorted({*servers[0], *servers[1]}):
        one, two = servers[0].get(name), servers[1].get(name)
        if one != two:
            parts = name.split(".")
            kind = kinds.get(parts[1], AGENT) if len(parts) > 1 else AGENT
            if kind == MODEL and "judge" in parts[0]:
                kind = VERIFIER
            shown = ".".join([parts[0], *parts[2:]])
            yield RunDifference(kind, f"{shown}: {_text(one)} → {_text(two)}")


def _code(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[RunDifference]:
    versions = [_mapping(run.get("code")) for run in (first, second)]
    for name in sorted({*versions[0]} & {*versions[1]}):
        one, two = versions[0][name], versions[1][name]
        if one != two:
            kind = VERIFIER if name.startswith("resources_servers/") else CODE
            changed = "its code changed" if "/" in name else f"{_text(one)} → {_text(two)}"
            yield RunDifference(kind, f"{name}: {changed}")


def _kinds_of_servers(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind of each implementation, from the folders in the versions of the code."""
    kinds = {}
    for name in _mapping(run.get("code")):
        folder, _, implementation = str(name).partition("/")
        if folder in _KIND_OF_FOLDER:
            kinds[implementation] = _KIND_OF_FOLDER[folder]
    return kinds


def _each(kind: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[RunDifference]:
    for name in sorted({*one, *two}):
        if one.get(name) != two.get(name):
            yield RunDifference(kind, f"{name}: {_text(one.get(name))} → {_text(two.get(name))}")


def _text(value: Any) -> str:
    text = _MISSING if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
