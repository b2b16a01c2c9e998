"""Translation: the reward is the sentence chrF of the reply against the reference."""

import asyncio
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import AliasChoices, ConfigDict, Field, field_validator

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
from nemo_gym.grading.language import check_langdetect, detect_language, is_written_in
from nemo_gym.grading.result_types import NoAnswer
from resources_servers.wmt_translation.scoring import (
    BleuTokenizer,
    check_sacrebleu,
    corpus_scores,
    default_tokenizer,
    normalise_text,
    sentence_bleu,
    sentence_chrf,
    strip_wrapping,
)

SLACK = 50
"""Characters that a reply may exceed the ratio by, for short references."""


class WMTTranslationConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    require_language: bool = False
    """Give no reward to a reply that langdetect does not recognise as the target language."""
    longest_ratio: float | None = Field(4.0, gt=0)
    """Give no reward to a reply longer than this multiple of the reference; chrF itself hardly penalises length."""
    bleu_tokenizer: BleuTokenizer | None = None
    """Tokenizer of every row; None: the target language decides."""


class WMTTranslationRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    source_language: str = Field(min_length=2)
    """A code, such as `en` or `de_DE`."""
    target_language: str = Field(min_length=2)
    source_text: str = Field(validation_alias=AliasChoices("source_text", "text"))
    reference: str = Field(validation_alias=AliasChoices("reference", "translation"))
    """The translation that replies are compared with."""

    @field_validator("source_text", "reference")
    @classmethod
    def _check_not_empty(cls, value: str) -> str:
        if not normalise_text(value):
            raise ValueError("is empty")
        return value


class WMTTranslationVerifyRequest(WMTTranslationRunRequest, BaseVerifyRequest):
    pass


class WMTTranslationVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    language_pair: str
    translation: str
    """The text that was graded; empty if the reply has none."""
    sentence_chrf: float
    """0 to 100; the reward is this divided by 100."""
    sentence_bleu: float
    bleu_tokenizer: BleuTokenizer
    detected_language: str | None = None
    language_consistent: bool | None = None
    """None without `require_language`."""
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
        message = last_assistant_text(body.response)
        text = "" if isinstance(message, NoAnswer) else normalise_text(strip_wrapping(message.value))
        reason = message.reason if isinstance(message, NoAnswer) else self.refusal(text, body)
        tokenizer = self.config.bleu_tokenizer or default_tokenizer(body.target_language)
        verdict: dict[str, Any] = {
            "language_pair": f"{body.source_language}->{body.target_language}",
            "translation": text,
            "bleu_tokenizer": tokenizer,
            "sentence_chrf": 0.0,
            "sentence_bleu": 0.0,
        }
        if self.config.require_language and text:
            verdict |= await asyncio.to_thread(_language_fields, text, body.target_language)
            reason = reason or (None if verdict["language_consistent"] else "it is not in the target language")
        if reason is None:
            references = [normalise_text(body.reference)]
            verdict["sentence_chrf"] = sentence_chrf(text, references)
            verdict["sentence_bleu"] = sentence_bleu(text, references, tokenizer)
        reward = min(1.0, round(verdict["sentence_chrf"] / 100, 6))
        return WMTTranslationVerifyResponse(
            **(body.model_dump() | verdict | {"no_reward_reason": reason, "reward": reward})
        )

    def refusal(self, text: str, body: WMTTranslationVerifyRequest) -> str | None:
        """Return the reason why a reply is no translation at all, or None."""
        gold, source = normalise_text(body.reference), normalise_text(body.source_text)
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
        keys = ("mean/reward", "mean/sentence_chrf", "mean/sentence_bleu", "corpus_chrf", "corpus_bleu")
        return {key: agent_metrics[key] for key in keys if key in agent_metrics}


def _language_fields(text: str, target: str) -> dict[str, Any]:
    code = target.replace("_", "-").split("-")[0]
    return {"detected_language": detect_language(text), "language_consistent": is_written_in(text, code)}


def corpus_metrics(rollouts: list[dict[str, Any]]) -> dict[str, float]:
    """Return corpus chrF and BLEU of each language pair and their means; a reply without reward counts as empty."""
    pairs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for rollout in rollouts:
        pairs[rollout["language_pair"]].append(rollout)
    metrics: dict[str, float] = {}
    for pair, group in sorted(pairs.items()):
        translations = ["" if one["no_reward_reason"] else one["translation"] for one in group]
        references = [normalise_text(one["reference"]) for one in group]
        scores = corpus_scores(translations, references, group[0]["bleu_tokenizer"])
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


# The names of these classes in NeMo Gym, for folders that import or subclass them.
WMTTranslationResourcesServer = WMTTranslationServer
WMTTranslationResourcesServerConfig = WMTTranslationConfig


if __name__ == "__main__":
    WMTTranslationServer.run_webserver()
