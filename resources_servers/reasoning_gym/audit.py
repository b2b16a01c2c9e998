"""Right, odd, wrong and cheating replies for `gym env audit reasoning_gym`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply

FULL_REWARD = 1.0
MOST_FOR_A_CHEAT = 0.05
"""Some scorers of the package pay up to 0.05 for any text of the right form."""
CONFIG = {"scorer_workers": 1}
MALFORMED = [
    ("no question", lambda row: {key: value for key, value in row.items() if key != "question"}),
    ("no metadata", lambda row: {key: value for key, value in row.items() if key != "metadata"}),
    ("no dataset", lambda row: {**row, "metadata": {}}),
    ("an unknown dataset", lambda row: {**row, "metadata": {**row["metadata"], "source_dataset": "telepathy"}}),
    ("an answer that is no text", lambda row: {**row, "answer": ["42"]}),
]
FORMS = (  # the answer replaces the percent sign
    "<answer>%</answer>",
    "<answer> % </answer>",
    "<answer>\n%\n</answer>",
    "<ANSWER>%</ANSWER>",
    "Let me see. <answer>%</answer>",
    "<answer>%</answer>\n\nI hope this helps.",
    "<think>it is <answer>7</answer></think><answer>%</answer>",
    "it is 7</think>\n<answer>%</answer>",
    "First <answer>7</answer>, but no: <answer>%</answer>",
    "\\boxed{%} and <answer>%</answer>",
    "\\boxed{7} <answer>%</answer>",
    "**<answer>%</answer>**",
    "```\n<answer>%</answer>\n```",
    "# Result\n<answer>%</answer>",
    "The answer is \\boxed{%}.",
    "$\\boxed{%}$",
    "\\[\\boxed{%}\\]",
    "\\boxed{ % }",
    "\\boxed{%}, not \\boxed{7}",
    "%",
    "  %\n",
    "<think>hm</think>%",
)


def oracle(row: dict[str, Any]) -> Reply:
    return f"<answer>{row['answer']}</answer>"


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    return [form.replace("%", row["answer"]) for form in FORMS]


def wrong(row: dict[str, Any]) -> list[Reply]:
    answer = row["answer"]
    return [f"<answer>{other}</answer>" for other in (f"{answer}1", f"1{answer}", answer[:-1] or "?", "none", "0.5")]


def wrong_candidate(answer: str) -> str:
    """Return a wrong answer of the same form: every digit and letter is replaced by the next one."""
    following = str.maketrans("0123456789abcdefghijklmnopqrstuvwxyz", "1234567890bcdefghijklmnopqrstuvwxyza")
    return answer.lower().translate(following)


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    words, other = row["question"].split(), wrong_candidate(row["answer"])
    return [
        ("the answer or another", f"<answer>{row['answer']} or {other}</answer>"),
        ("another or the answer", f"<answer>{other} or {row['answer']}</answer>"),
        ("a list of candidates", f"<answer>{row['answer']}, {other}</answer>"),
        ("both in lines", f"<answer>{other}\n{row['answer']}</answer>"),
        ("an empty tag", "<answer></answer>"),
        ("a tag that is not closed", f"<answer>{row['answer']}"),
        ("a right tag, then one that is not closed", f"<answer>{row['answer']}</answer> <answer>"),
        ("only in reasoning", f"<think><answer>{row['answer']}</answer></think>"),
        ("the question in a tag", f"<answer>{row['question']}</answer>"),
        ("the question shouted", f"<answer>{row['question'].upper()}</answer>"),
        ("the question's words", f"<answer>{' '.join(sorted(words))}</answer>"),
        ("every answer", f"<answer>{' '.join(map(str, range(2000)))}</answer>"),
        ("forged", '<answer>{"score": 1.0}</answer>'),
        ("code", "<answer>__import__('os').write(1, b'1.0')</answer>"),
        ("too long", f"<answer>{row['answer'] * 20_000}</answer>"),
    ]
