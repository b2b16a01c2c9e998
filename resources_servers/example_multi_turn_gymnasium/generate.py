"""Write conversations that carry a sum along: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

LABEL = "TOTAL="
THINGS = ("apples", "tickets", "stamps", "coins", "books", "screws")


def row(seed: str) -> dict[str, Any]:
    """Build one conversation in which a number changes from turn to turn."""
    draw = random.Random(seed)
    thing = draw.choice(THINGS)
    total = draw.randint(20, 60)
    first = f"I have {total} {thing}. Remember the number; I will tell you what changes. Just say that you are ready."
    follow_ups = []
    for _ in range(draw.randint(1, 3)):
        change = draw.randint(3, 19)
        more = draw.random() < 0.5
        total += change if more else -change
        follow_ups.append(f"I {'got' if more else 'gave away'} {change} {thing}{' more' if more else ''}. Noted?")
    follow_ups.append(f"How many {thing} do I have now? End your reply with {LABEL} and the number, like {LABEL}5.")
    return {
        "responses_create_params": {"input": [{"role": "user", "content": first}]},
        "follow_ups": follow_ups,
        "expected_substring": f"{LABEL}{total}",
        "answer_label": LABEL,
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different conversations."""
    conversations: dict[str, dict[str, Any]] = {}
    for number in range(count * 100):
        conversations.setdefault(str(new := row(f"{seed}:{number}")), new)
        if len(conversations) == count:
            return list(conversations.values())
    raise SystemExit(f"there are not {count} different conversations")


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
