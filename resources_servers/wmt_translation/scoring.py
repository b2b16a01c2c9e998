"""How near a translation is to its reference: chrF and BLEU by sacrebleu, after both are written the same way."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal

from nemo_gym.errors import ConfigError
from nemo_gym.grading.structured import fenced_blocks

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""Those of sacrebleu that need nothing from the network; the flores ones load a model from there."""

WITHOUT_SPACES = frozenset({"ja", "th", "lo", "km", "my", "bo"})
AROUND = [("***", "***"), ("**", "**"), *zip("\"“„«»「'‘*`", "\"”“»«」'’*`", strict=True)]
"""Marks that may stand around a whole translation and do not belong to it."""

_SAME = str.maketrans(
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
    """Say at the start, not in the middle of a run, that sacrebleu is missing.

    Raises:
        ConfigError: it is.
    """
    if find_spec("sacrebleu") is None:
        raise ConfigError("sacrebleu is not installed", where=where, fix="pip install 'nemo-gym[environments]'")


def bare(text: str) -> str:
    """The translation in a reply: without a label before it, and without a fence or quotes around all of it."""
    inner = text.strip()
    blocks = list(fenced_blocks(inner + "\n"))
    if len(blocks) == 1 and inner.startswith(("```", "~~~")) and inner.endswith(("```", "~~~")):
        inner = blocks[0].value.strip()
    inner = _LABEL.sub("", inner, count=1).strip()
    while (within := _within(inner)) is not None:
        inner = within
    return inner


def _within(text: str) -> str | None:
    """What stands between marks around all of `text`, or None. Marks that come again inside part something else."""
    for left, right in AROUND:
        if len(text) > len(left + right) and text.startswith(left) and text.endswith(right):
            within = text[len(left) : -len(right)]
            return None if left in within or right in within else within.strip()
    return None


def normalised(text: str) -> str:
    """One way of writing: compatibility forms, plain quotes and dashes, single spaces, nothing invisible."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFC", text).translate(_SAME)).split())


def tokenizer_for(language: str) -> BleuTokenizer:
    """What BLEU counts in a language: words, or characters where words are not parted."""
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


def sentence_chrf(said: str, references: Sequence[str]) -> float:
    """chrF from 0 to 100 against the best reference."""
    return float(_chrf().sentence_score(said, list(references)).score)


def sentence_bleu(said: str, references: Sequence[str], tokenizer: BleuTokenizer) -> float:
    return float(_bleu(tokenizer, one_sentence=True).sentence_score(said, list(references)).score)


def corpus_scores(said: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer) -> dict[str, float]:
    """chrF and BLEU of many sentences as one text, which is not the mean of their scores."""
    chrf = _chrf().corpus_score(list(said), [list(references)])
    bleu = _bleu(tokenizer, one_sentence=False).corpus_score(list(said), [list(references)])
    return {"corpus_chrf": float(chrf.score), "corpus_bleu": float(bleu.score)}
