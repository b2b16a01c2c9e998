"""Several needles in a long text: the reply is right when it gives the value of every requested needle."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.grading.extraction import last_assistant_text
from nemo_gym.grading.result_types import NoAnswer
from nemo_gym.grading.text import normalise_text
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from resources_servers.multineedle.reading import comparable, values_by_name

DEPTHS = 4
"""Number of parts of the text for which recall is reported."""


class MultineedleConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class Needle(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    """The name in the question, such as `Lisbon`."""
    value: str
    """The value in the text, such as `7193042`."""
    depth: float | None = Field(None, ge=0.0, le=1.0)
    """Position in the text, from 0 (beginning) to 1 (end)."""


class MultineedleRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    needles: list[Needle] = Field(min_length=1)
    """Everything that the reply must give."""
    distractors: list[str] = []
    """Names in the text that the question does not ask for. A reply that gives them a value has not chosen."""

    @model_validator(mode="after")
    def _check_names_differ(self) -> "MultineedleRunRequest":
        names = Counter(normalise_text(name) for name in [*(n.name for n in self.needles), *self.distractors])
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise ValueError(f"`needles` and `distractors` name these more than once: {', '.join(twice)}")
        if "" in names:
            raise ValueError("a name in `needles` or `distractors` is empty")
        if empty := [needle.name for needle in self.needles if not comparable(needle.value)]:
            raise ValueError(f"`needles` without a value: {', '.join(empty)}")
        return self


class MultineedleVerifyRequest(MultineedleRunRequest, BaseVerifyRequest):
    pass


class NeedleResult(BaseModel):
    """The verdict on one needle."""

    name: str
    given: list[str]
    """Values that the reply gives for this name; several count as no answer."""
    found: bool
    depth: float | None = None


class MultineedleVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    needle_results: list[NeedleResult]
    fraction_found: float
    """Share of needles with the right value, for reports; the reward is 1 only if all are right."""
    extra_names: list[str] = []
    """Distractors for which the reply gives a value."""
    unparsed_reason: str | None = None


class MultineedleResourcesServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: MultineedleConfig

    async def verify(self, body: MultineedleVerifyRequest) -> MultineedleVerifyResponse:
        message = last_assistant_text(body.response)
        text = "" if isinstance(message, NoAnswer) else message.value
        values = values_by_name(text, [*(needle.name for needle in body.needles), *body.distractors])
        results = [_needle_result(needle, values.get(needle.name, [])) for needle in body.needles]
        extra = [name for name in body.distractors if name in values]
        found_count = sum(result.found for result in results)
        verdict = {
            "needle_results": results,
            "fraction_found": found_count / len(results),
            "extra_names": extra,
            "unparsed_reason": message.reason if isinstance(message, NoAnswer) else None if values else NOTHING_NAMED,
            "reward": float(found_count == len(results) and not extra),
        }
        return MultineedleVerifyResponse(**(body.model_dump() | verdict))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, _scores)[0] | recall_by_depth(tasks)

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics, "mean/fraction_found")


NOTHING_NAMED = "no name that was asked for is followed by a value"


def _needle_result(needle: Needle, values: list[str]) -> NeedleResult:
    is_found = len(values) == 1 and comparable(values[0]) == comparable(needle.value)
    return NeedleResult(name=needle.name, given=values, found=is_found, depth=needle.depth)


def _scores(rollout: dict[str, Any]) -> dict[str, float]:
    return {"accuracy": rollout["reward"], "recall": rollout["fraction_found"]}


def recall_by_depth(tasks: list[list[dict[str, Any]]]) -> dict[str, float]:
    """Return the share of needles found in each quarter of the texts, which shows where a model stops reading."""
    totals: Counter[int] = Counter()
    found_counts: Counter[int] = Counter()
    results = [result for task in tasks for rollout in task for result in rollout.get("needle_results", [])]
    for result in results:
        if result["depth"] is not None:
            quarter = min(DEPTHS - 1, int(result["depth"] * DEPTHS))
            totals[quarter] += 1
            found_counts[quarter] += result["found"]
    step = 100 // DEPTHS
    return {
        f"recall/depth={part * step}-{(part + 1) * step}%": found_counts[part] / totals[part] for part in sorted(totals)
    }


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MultineedleResourcesServer),
    request_model=MultineedleVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MultineedleResourcesServer.run_webserver()
