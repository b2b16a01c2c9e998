"""Translation: the reward is how near the reply is to the reference, as sentence chrF."""

import asyncio
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import ConfigDict, Field, field_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.language import check_langdetect, is_written_in, language_of
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.verdict import Unparsed
from resources_servers.wmt_translation.scoring import (
    BleuTokenizer,
    bare,
    check_sacrebleu,
    corpus_scores,
    normalised,
    sentence_bleu,
    sentence_chrf,
    tokenizer_for,
)

SLACK = 50
"""Characters that a reply may be longer in any case."""


class WMTTranslationConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    require_language: bool = False
    """No reward for a reply that langdetect does not take for the target language."""
    longest_ratio: float | None = Field(4.0, gt=0)
    """No reward for a reply more than so many times as long as the reference; chrF itself forgives length."""
    bleu_tokenizer: BleuTokenizer | None = None
    """For every row; otherwise the target language decides."""


class WMTTranslationRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    source_language: str = Field(min_length=2)
    """A code, such as `en` or `de_DE`."""
    target_language: str = Field(min_length=2)
    source_text: str
    reference: str
    """The translation that replies are compared with."""

    @field_validator("source_text", "reference")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not normalised(value):
            raise ValueError("is empty")
        return value


class WMTTranslationVerifyRequest(WMTTranslationRunRequest, BaseVerifyRequest):
    pass


class WMTTranslationVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    language_pair: str
    translation: str
    """What was graded; empty when there is nothing."""
    sentence_chrf: float
    """0 to 100; the reward is a hundredth of it, unless there is a `no_reward_reason`."""
    sentence_bleu: float
    bleu_tokenizer: BleuTokenizer
    detected_language: str | None = None
    language_consistent: bool | None = None
    """None unless `require_language` is on."""
    no_reward_reason: str | None = None


class WMTTranslationServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: WMTTranslationConfig

    def setup_webserver(self) -> FastAPI:
        check_sacrebleu(self.config.name)
        if self.config.require_language:
            check_langdetect(self.config.name)
        return super().setup_webserver()

    async def verify(self, body: WMTTranslationVerifyRequest) -> WMTTranslationVerifyResponse:
        said = last_assistant_text(body.response)
        text = "" if isinstance(said, Unparsed) else normalised(bare(said.value))
        reason = said.reason if isinstance(said, Unparsed) else self.refusal(text, body)
        tokenizer = self.config.bleu_tokenizer or tokenizer_for(body.target_language)
        graded: dict[str, Any] = {
            "language_pair": f"{body.source_language}->{body.target_language}",
            "translation": text,
            "bleu_tokenizer": tokenizer,
            "sentence_chrf": 0.0,
            "sentence_bleu": 0.0,
        }
        if self.config.require_language and text:
            graded |= await asyncio.to_thread(_language, text, body.target_language)
            reason = reason or (None if graded["language_consistent"] else "it is not in the target language")
        if reason is None:
            gold = [normalised(body.reference)]
            graded["sentence_chrf"] = sentence_chrf(text, gold)
            graded["sentence_bleu"] = sentence_bleu(text, gold, tokenizer)
        reward = min(1.0, round(graded["sentence_chrf"] / 100, 6))
        return WMTTranslationVerifyResponse(
            **(body.model_dump() | graded | {"no_reward_reason": reason, "reward": reward})
        )

    def refusal(self, text: str, body: WMTTranslationVerifyRequest) -> str | None:
        """Why a reply is no translation at all, or None."""
        gold, source = normalised(body.reference), normalised(body.source_text)
        if not text:
            return "the reply is empty"
        if text.casefold() == source.casefold() != gold.casefold():
            return "it is the source text"
        ratio = self.config.longest_ratio
        if ratio is not None and len(text) > ratio * len(gold) + SLACK:
            return f"it is more than {ratio:g} times as long as the reference"
        return None

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return corpus_metrics([rollout for task in tasks for rollout in task if "language_pair" in rollout])

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        wanted = ("mean/reward", "mean/sentence_chrf", "mean/sentence_bleu", "corpus_chrf", "corpus_bleu")
        return {key: agent_metrics[key] for key in wanted if key in agent_metrics}


def _language(text: str, target: str) -> dict[str, Any]:
    code = target.replace("_", "-").split("-")[0]
    return {"detected_language": language_of(text), "language_consistent": is_written_in(text, code)}


def corpus_metrics(rollouts: list[dict[str, Any]]) -> dict[str, float]:
    """Corpus chrF and BLEU of each language pair, and their means. A reply without reward counts as empty."""
    pairs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for rollout in rollouts:
        pairs[rollout["language_pair"]].append(rollout)
    metrics: dict[str, float] = {}
    for pair, found in sorted(pairs.items()):
        said = ["" if one["no_reward_reason"] else one["translation"] for one in found]
        scores = corpus_scores(said, [normalised(one["reference"]) for one in found], found[0]["bleu_tokenizer"])
        metrics |= {f"{pair}/{name}": value for name, value in scores.items()}
    for name in ("corpus_chrf", "corpus_bleu"):
        values = [value for key, value in metrics.items() if key.endswith(f"/{name}")]
        if values:
            metrics[name] = fmean(values)
    return metrics


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(WMTTranslationServer),
    request_model=WMTTranslationVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    WMTTranslationServer.run_webserver()
