"""Write questions whose answers can be said in many ways: `python generate.py OUT --rows 40 --seed 0`."""

import random
from datetime import date, timedelta
from typing import Any

from nemo_gym.data.generator_command import question_rows, run_generator

ASK = "End with a line of the form 'Answer: …'."
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
THINGS = ("a book", "a lamp", "a kettle", "a map", "a pair of gloves")


def _clock(draw: random.Random) -> tuple[str, str]:
    hour, minute = draw.randint(6, 11), draw.choice(range(0, 60, 5))
    hours, minutes = draw.randint(2, 9), draw.choice(range(5, 60, 5))
    arrival = (hour + hours) * 60 + minute + minutes
    question = f"A train leaves at {hour:02d}:{minute:02d} and travels for {hours} hours and {minutes} minutes."
    return f"{question} At what time does it arrive?", f"{arrival // 60:02d}:{arrival % 60:02d}"


def _calendar(draw: random.Random) -> tuple[str, str]:
    start, days = date(2023, 1, 1) + timedelta(draw.randrange(700)), draw.randint(20, 90)
    end = start + timedelta(days)
    question = (
        f"A voucher was bought on {start.day} {MONTHS[start.month - 1]} {start.year} and is valid for {days} days"
    )
    return f"{question} after that day. What is its last day?", f"{end.day} {MONTHS[end.month - 1]} {end.year}"


def _money(draw: random.Random) -> tuple[str, str]:
    cents, note = draw.randint(510, 1990), 2000
    thing = draw.choice(THINGS)
    change = note - cents
    question = f"Somebody pays for {thing} at {cents / 100:.2f} euros with a note of 20 euros. How much change is due?"
    return question, f"{change / 100:.2f} euros"


KINDS = (_clock, _calendar, _money)


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different questions, the kinds in turn."""
    return question_rows(count, seed=seed, kinds=KINDS, instruction=ASK)


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
