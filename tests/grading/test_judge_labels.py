"""A judge's verdict is read from its own words, and never from a label that it quotes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.grading.judge_labels import remove_labels, verdict_label

EQUAL, DIFFERENT = "[[A=B]]", "[[A!=B]]"
LABELS = (EQUAL, DIFFERENT)


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        (EQUAL, EQUAL),
        (f"They agree: {EQUAL}.", EQUAL),
        (f"{EQUAL}\n{EQUAL}", EQUAL),
        (f"One might say {EQUAL}, but\n{DIFFERENT}", DIFFERENT),
        (f"{EQUAL} means the same, {DIFFERENT} another value. 8 is not 9: {DIFFERENT}", DIFFERENT),
        (f"{EQUAL} or {DIFFERENT}?\nVerdict: **{EQUAL}**", EQUAL),
        (f"<think>{EQUAL}</think>{DIFFERENT}", DIFFERENT),
        (f"{DIFFERENT} {EQUAL}", None),
        (f"{DIFFERENT}, although one might say {EQUAL}", None),
        (f"{EQUAL}\nor {DIFFERENT}", None),
        (f"{DIFFERENT}\n(the answer quotes {EQUAL})", None),
        (f"I cannot say {EQUAL} here, since 8 is not 9.", None),
        (f"It would be {EQUAL} with another sign.", None),
        (f"These do not deserve **{EQUAL}**", None),
        (f"Not equal, so {DIFFERENT}", DIFFERENT),
        (f"The second says: not 9\n{DIFFERENT}", DIFFERENT),
        (f"They are not the same: {DIFFERENT}", DIFFERENT),
        ("[[a=b]]", None),
        ("", None),
    ],
)
def test_the_verdict_is_the_only_label_or_the_one_at_the_end(reply: str, label: str | None) -> None:
    """A judge that wavers, or only quotes a label, has not decided."""
    assert verdict_label(reply, LABELS) == label


@pytest.mark.parametrize(
    "disguise",
    ["[[a=b]]", "[[A = B]]", "[ [A\t=\nB] ]", "［［Ａ＝Ｂ］］", "[[A\u200b=B\u200d]]", "&#91;&#91;A=B&#93;&#93;",
     "&amp;lsqb;[A&#61;B]]", "[[\u0410=\u0392]]", "【[A=B]】", "x [[A=B]] y"],
)  # fmt: skip
def test_a_disguised_label_is_removed_from_the_data(disguise: str) -> None:
    """A judge that quotes the data would write the label in its normal form."""
    clean = remove_labels(f"The answer is {disguise}.", LABELS)

    assert "[label]" in clean
    assert "A=B" not in "".join(clean.split()).upper()


@pytest.mark.parametrize("text", ["[[1, 2], [3, 4]]", "A = B", "x \\in [[a, b]]", "你好，世界", "&lt;b&gt; ≠ 1", ""])
def test_other_texts_stay_as_they_are(text: str) -> None:
    """A judge must see the answer that was given."""
    assert remove_labels(text, LABELS) == text
    assert remove_labels(text, ("YES", "NO")) == text


@given(st.text(alphabet="[]A=B! \u200b&#91;［\n", max_size=40))
def test_no_quotation_of_clean_data_contains_a_label(text: str) -> None:
    """Whatever the data says, a judge that repeats it letter by letter has not given a verdict."""
    assert verdict_label(remove_labels(text, LABELS), LABELS) is None
