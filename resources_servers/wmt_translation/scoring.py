"""Score a translation against its reference: chrF and BLEU by sacrebleu, on normalised text."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal

from nemo_gym.errors import ConfigError
from nemo_gym.grading.extraction import fenced_blocks

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""Tokenizers of sacrebleu that work offline; the flores tokenizers download a model."""

WITHOUT_SPACES = frozenset({"ja", "th", "lo", "km", "my", "bo"})
AROUND = [("***", "***"), ("**", "**"), *zip("\"“„«»「'‘*`", "\"”“»«」'’*`", strict=True)]
"""Marks around a whole translation that do not belong to it."""

_UNIFIED = str.maketrans(
    {
        **dict.fromkeys("“”„‟″«»「」", '"'),
        **dict.fromkeys("‘’‚‛′`´", "'"),
        **dict.fromkeys("‐‑‒–—―", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad"),
    }
)
_NAMES = r"(?:(?:the )?(?:\w+ )?translation(?: \w+)?|übersetzung|traduction|traducción|traduzione|翻译|译文)"
_LABEL = re.compile(rf"^[*_#>\s]*{_NAMES}(?: \([\w\s]+\))?[*_\s]*[:：][*_\s]*", re.IGNORECASE)


def check_sacrebleu(where: str) -> None:
    """Check that sacrebleu is installed, so that a server without it fails at startup and not during a run.

    Raises:
        ConfigError: sacrebleu is missing.
    """
    if find_spec("sacrebleu") is None:
        raise ConfigError("sacrebleu is not installed", where=where, fix="pip install 'nemo-gym[environments]'")


def strip_wrapping(text: str) -> str:
    """Return the translation in a reply without a label before it and without a fence or quotes around all of it."""
    inner = text.strip()
    blocks = list(fenced_blocks(inner + "\n"))
    if len(blocks) == 1 and inner.startswith(("```", "~~~")) and inner.endswith(("```", "~~~")):
        inner = blocks[0].value.strip()
    inner = _LABEL.sub("", inner, count=1).strip()
    while (unwrapped := _unwrap_once(inner)) is not None:
        inner = unwrapped
    return inner


def _unwrap_once(text: str) -> str | None:
    """Return the text inside marks around all of `text`, or None if it has none or they also occur inside."""
    for left, right in AROUND:
        if len(text) > len(left + right) and text.startswith(left) and text.endswith(right):
            within = text[len(left) : -len(right)]
            return None if left in within or right in within else within.strip()
    return None


def normalise_text(text: str) -> str:
    """Normalise a text: compatibility forms, plain quotes and dashes, single spaces, no invisible characters."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFC", text).translate(_UNIFIED)).split())


def default_tokenizer(language: str) -> BleuTokenizer:
    """Return the BLEU tokenizer of a language: words, or characters where words are not separated by spaces."""
    code = re.split(r"[-_]", language.lower())[0]
    return "zh" if code == "zh" else "char" if code in WITHOUT_SPACES else "13a"


@lru_cache(maxsize=1)
def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF  # 150 ms: only when something is graded

    return CHRF()


@lru_cache(maxsize=16)
def _bleu(tokenizer: BleuTokenizer, *, one_sentence: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenizer, effective_order=one_sentence)


def sentence_chrf(translation: str, references: Sequence[str]) -> float:
    """Return chrF from 0 to 100 against the best reference."""
    return float(_chrf().sentence_score(translation, list(references)).score)


def sentence_bleu(translation: str, references: Sequence[str], tokenizer: BleuTokenizer) -> float:
    return float(_bleu(tokenizer, one_sentence=True).sentence_score(translation, list(references)).score)


def corpus_scores(translations: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer) -> dict[str, float]:
    """Return chrF and BLEU of many sentences as one text, which is not the mean of their scores."""
    chrf = _chrf().corpus_score(list(translations), [list(references)])
    bleu = _bleu(tokenizer, one_sentence=False).corpus_score(list(translations), [list(references)])
    return {"corpus_chrf": float(chrf.score), "corpus_bleu": float(bleu.score)}
