"""Several needles in a long text: the reply is right when it gives the value of every needle that was asked for."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.normalise import plain_text
from nemo_gym.grading.verdict import Unparsed
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from resources_servers.multineedle.reading import comparable, values_by_name

DEPTHS = 4
"""Parts of the text that recall is reported for."""


class MultineedleConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class Needle(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    """What the question asks for, such as `Lisbon`."""
    value: str
    """What the text says about it, such as `7193042`."""
    depth: float | None = Field(None, ge=0.0, le=1.0)
    """Where it stands in the text: 0 is the beginning, 1 the end."""


class MultineedleRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    needles: list[Needle] = Field(min_length=1)
    """What has to be found; all of it."""
    distractors: list[str] = []
    """Names that also stand in the text and were not asked for. A reply that lists them has not chosen."""

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> "MultineedleRunRequest":
        names = Counter(plain_text(name) for name in [*(n.name for n in self.needles), *self.distractors])
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
    """How one needle went."""

    name: str
    given: list[str]
    """The values that the reply gives it; more than one is no answer."""
    found: bool
    depth: float | None = None


class MultineedleVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    needle_results: list[NeedleResult]
    fraction_found: float
    """Part of the needles whose value is right. Reported; the reward is 1 only for all of them."""
    extra_names: list[str] = []
    """Distractors that the reply gives a value as well."""
    unparsed_reason: str | None = None


class MultineedleResourcesServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: MultineedleConfig

    async def verify(self, body: MultineedleVerifyRequest) -> MultineedleVerifyResponse:
        said = last_assistant_text(body.response)
        text = "" if isinstance(said, Unparsed) else said.value
        given = values_by_name(text, [*(needle.name for needle in body.needles), *body.distractors])
        results = [_result(needle, given.get(needle.name, [])) for needle in body.needles]
        extra = [name for name in body.distractors if name in given]
        found = sum(result.found for result in results)
        graded = {
            "needle_results": results,
            "fraction_found": found / len(results),
            "extra_names": extra,
            "unparsed_reason": said.reason if isinstance(said, Unparsed) else None if given else NOTHING_NAMED,
            "reward": float(found == len(results) and not extra),
        }
        return MultineedleVerifyResponse(**(body.model_dump() | graded))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, _scores)[0] | recall_by_depth(tasks)

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        wanted = ("mean/reward", "mean/fraction_found")
        means = {key: agent_metrics[key] for key in wanted if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


NOTHING_NAMED = "no name that was asked for is followed by a value"


def _result(needle: Needle, given: list[str]) -> NeedleResult:
    found = len(given) == 1 and comparable(given[0]) == comparable(needle.value)
    return NeedleResult(name=needle.name, given=given, found=found, depth=needle.depth)


def _scores(rollout: dict[str, Any]) -> dict[str, float]:
    return {"accuracy": rollout["reward"], "recall": rollout["fraction_found"]}


def recall_by_depth(tasks: list[list[dict[str, Any]]]) -> dict[str, float]:
    """The part of needles that was found in each quarter of the texts: where a model stops reading."""
    asked: Counter[int] = Counter()
    found: Counter[int] = Counter()
    results = [result for task in tasks for rollout in task for result in rollout.get("needle_results", [])]
    for result in results:
        if result["depth"] is not None:
            quarter = min(DEPTHS - 1, int(result["depth"] * DEPTHS))
            asked[quarter] += 1
            found[quarter] += result["found"]
    step = 100 // DEPTHS
    return {f"recall/depth={part * step}-{(part + 1) * step}%": found[part] / asked[part] for part in sorted(asked)}


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MultineedleResourcesServer),
    request_model=MultineedleVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MultineedleResourcesServer.run_webserver()
