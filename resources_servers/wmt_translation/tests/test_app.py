"""Prove the verifier of translations: chrF rewards closeness to the reference and nothing else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.wmt_translation import audit, scoring
from resources_servers.wmt_translation.app import WMTTranslationServer
from resources_servers.wmt_translation.generate import rows
from resources_servers.wmt_translation.scoring import default_tokenizer, normalise_text, sentence_chrf, strip_wrapping
from resources_servers.wmt_translation.sentences import LANGUAGES, PAIRS, SENTENCES

FOLDER = Path(__file__).parents[1]
ALL = rows(len(PAIRS) * len(SENTENCES), seed=2)
ROW = next(row for row in ALL if (row["source_language"], row["target_language"]) == ("en", "de"))
CHINESE = next(row for row in ALL if row["target_language"] == "zh")


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = FOLDER
    checked_rows = 2 * len(PAIRS)


def verify(text: str, row: dict[str, Any], **server_settings: Any) -> dict[str, Any]:
    return verify_reply(offline_client(WMTTranslationServer, **server_settings), row, text)


def test_the_reference_scores_full_in_every_language() -> None:
    """A row whose own answer scores less than full teaches the wrong thing."""
    http = offline_client(WMTTranslationServer)

    assert len(PAIRS) >= 4
    for row in ALL:
        verdict = verify_reply(http, row, audit.oracle(row))
        assert (verdict["reward"], verdict["no_reward_reason"]) == (1.0, None)
        assert verdict["sentence_bleu"] == pytest.approx(100.0)


def test_every_sentence_exists_once_in_every_language() -> None:
    """Sentences written by hand may have typos, but must be complete."""
    assert all(set(sentence) == set(LANGUAGES) for sentence in SENTENCES)
    assert len({text for sentence in SENTENCES for text in sentence.values()}) == len(SENTENCES) * len(LANGUAGES)


def test_a_translation_scores_less_the_further_it_is_from_the_reference() -> None:
    """A gradual reward lets a policy improve step by step."""
    one_word = ROW["reference"].replace(ROW["reference"].split()[1], "Wagen", 1)

    near, half, far = (verify(text, ROW)["reward"] for text in (one_word, audit.wrong(ROW)[0], audit.wrong(ROW)[1]))

    assert 1.0 > near > half > far > 0.0


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "<think>Hm</think>", "<think>Hm"])
def test_an_empty_reply_scores_exactly_zero(text: str) -> None:
    """An empty reply has a reason in its verdict, unlike a bad translation."""
    verdict = verify(text, ROW)

    assert (verdict["reward"], verdict["sentence_chrf"], verdict["translation"]) == (0.0, 0.0, "")
    assert verdict["no_reward_reason"]


def test_the_source_text_scores_zero_unless_it_is_the_reference() -> None:
    """Names and numbers stay as they are in every language."""
    same = {**ROW, "source_text": "Berlin 1999", "reference": "Berlin 1999"}

    assert verify(ROW["source_text"].upper(), ROW)["no_reward_reason"] == "it is the source text"
    assert verify("Berlin 1999", same)["reward"] == 1.0


def test_stuffing_a_reply_with_alternatives_is_refused() -> None:
    """chrF weighs recall twice as much as precision: without the limit, ten candidates would score a third."""
    stuffed = " ".join([ROW["reference"]] * 10)

    assert "times as long" in verify(stuffed, ROW)["no_reward_reason"]
    assert verify(stuffed, ROW, longest_ratio=None)["reward"] > 0.3


def test_the_language_can_be_required() -> None:
    """English that looks a little like German is not German."""
    english = "Last summer the old bridge in the village was repaired, and now it is open to everyone again."
    row = {
        **ROW,
        "reference": "Letzten Sommer wurde die alte Brücke im Dorf repariert, und nun ist sie für alle offen.",
    }

    assert verify(english, row)["reward"] > 0.0
    assert verify(english, row)["language_consistent"] is None
    strict = verify(english, row, require_language=True)
    assert (strict["reward"], strict["detected_language"], strict["language_consistent"]) == (0.0, "en", False)
    assert verify(row["reference"], row, require_language=True)["reward"] == 1.0
    chinese = verify(CHINESE["reference"], CHINESE, require_language=True)
    assert (chinese["reward"], chinese["language_consistent"]) == (1.0, True)


@pytest.mark.parametrize(
    ("language", "tokenizer"), [("de", "13a"), ("zh", "zh"), ("zh_CN", "zh"), ("ja-JP", "char"), ("th", "char")]
)
def test_the_tokenizer_of_bleu_follows_the_target_language(language: str, tokenizer: str) -> None:
    """Chinese has no spaces: split at spaces, every sentence is one word."""
    assert default_tokenizer(language) == tokenizer


def test_the_tokenizer_of_bleu_can_be_set() -> None:
    """Results are only compared with results of the same tokenizer, so the verdict names it."""
    assert verify(ROW["reference"], ROW)["bleu_tokenizer"] == "13a"
    assert verify(ROW["reference"], ROW, bleu_tokenizer="char")["bleu_tokenizer"] == "char"


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ('"Ja."', "Ja."),
        ('"Ja", sagte er, "nein"', '"Ja", sagte er, "nein"'),
        ("**Ja** und **nein**", "**Ja** und **nein**"),
        ("***Ja***", "Ja"),
        ("Here is the translation: Ja.", "Here is the translation: Ja."),
        ("The German translation: Ja.", "Ja."),
        ("```\nJa.\n```", "Ja."),
        ("Ja.\n```\nNein.\n```", "Ja.\n```\nNein.\n```"),
        ('""', '""'),
        ("'", "'"),
    ],
)
def test_only_marks_around_the_whole_reply_are_stripped(text: str, inner: str) -> None:
    """Quotes inside a sentence belong to it."""
    assert strip_wrapping(text) == inner


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=80), st.text(min_size=1, max_size=80))
def test_any_two_texts_have_a_score_between_0_and_100(reply: str, reference: str) -> None:
    """Models write anything, and references come from everywhere."""
    left, right = normalise_text(strip_wrapping(reply)), normalise_text(reference)
    if left and right:
        assert 0.0 <= sentence_chrf(left, [right]) <= 100.0 + 1e-9
    assert normalise_text(left) == left


def test_sacrebleu_is_imported_only_for_grading() -> None:
    """The import takes 150 ms, which every command that loads this server would pay."""
    code = "import sys, resources_servers.wmt_translation.app; print(*({'sacrebleu', 'langdetect'} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=60, check=True
    )

    assert process.stdout.split() == []


def test_a_missing_sacrebleu_is_reported_at_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported in the middle of a run, it would look like ten thousand failures."""
    monkeypatch.setattr(scoring, "find_spec", lambda name: None)

    with pytest.raises(Exception, match="sacrebleu is not installed"):
        offline_server(WMTTranslationServer).setup_webserver()


def test_corpus_scores_are_reported_for_each_language_pair() -> None:
    """Published results are corpus scores; the mean of sentence scores is another number."""
    server = offline_server(WMTTranslationServer)
    into_german = [verify(row["reference"], row) for row in ALL if row["target_language"] == "de"][:3]
    chinese = verify(audit.wrong(CHINESE)[0], CHINESE)
    empty = verify("", CHINESE)

    metrics = server.compute_metrics([[one] for one in [*into_german, chinese, empty]])

    pair = into_german[0]["language_pair"]
    assert metrics[f"{pair}/corpus_chrf"] == pytest.approx(100.0)
    assert metrics[f"{pair}/corpus_bleu"] == pytest.approx(100.0)
    assert 0.0 < metrics[f"{CHINESE['source_language']}->zh/corpus_chrf"] < 60.0
    by_pair = [value for key, value in metrics.items() if key.endswith("/corpus_chrf")]
    assert metrics["corpus_chrf"] == pytest.approx(sum(by_pair) / len(by_pair))
    assert server.compute_metrics([]) == {}
