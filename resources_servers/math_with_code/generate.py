"""Write questions that are easy with a computer and tedious without: `python generate.py OUT --rows 40 --seed 0`."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemo_gym.data.generator_command import run_generator

ASK = "You may run Python with the tool execute_python. Give the final answer in \\boxed{}."
TOOL = {
    "type": "function",
    "name": "execute_python",
    "description": "Run Python code. Names are kept between calls; the value of a last expression is printed.",
    "parameters": {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python source."}},
        "required": ["code"],
        "additionalProperties": False,
    },
    "strict": True,
}


@dataclass(frozen=True)
class Kind:
    """A kind of question: its text, its answer, and code that computes the answer."""

    question: str
    code: str
    draw: Callable[[random.Random], dict[str, int]]
    answer: Callable[..., int | str]


def primes_with_digit_sum(limit: int, total: int) -> int:
    sieve = bytearray([1]) * limit
    sieve[:2] = b"\0\0"
    for n in range(2, math.isqrt(limit) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
    return sum(sieve[n] and sum(map(int, str(n))) == total for n in range(limit))


def lattice_points(radius: int) -> int:
    return sum(2 * math.isqrt(radius * radius - x * x) + 1 for x in range(-radius, radius + 1))


def last_digits(top: int, digits: int) -> int:
    modulus = int("1" + "0" * digits)
    return sum(pow(k, k, modulus) for k in range(1, top + 1)) % modulus


def harmonic(top: int) -> str:
    above, below = 0, 1
    for n in range(1, top + 1):
        above, below = above * n + below, below * n
    common = math.gcd(above, below)
    return f"{above // common}/{below // common}"


def longest_collatz(limit: int) -> int:
    lengths = {1: 1}
    for start in range(2, limit + 1):
        trail, n = [], start
        while n not in lengths:
            trail.append(n)
            n = n // 2 if n % 2 == 0 else 3 * n + 1
        lengths.update({m: lengths[n] + i for i, m in enumerate(reversed(trail), start=1)})
    return max(range(1, limit + 1), key=lambda n: (lengths[n], -n))


KINDS = {
    "primes": Kind(
        "How many primes below {limit} have digits that add up to {total}?",
        "def prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n"
        "sum(1 for n in range({limit}) if sum(map(int, str(n))) == {total} and prime(n))",
        lambda draw: {"limit": draw.randrange(2_000, 20_000, 500), "total": draw.choice([10, 11, 13, 14, 16])},
        primes_with_digit_sum,
    ),
    "lattice": Kind(
        "How many points with whole coordinates lie inside or on the circle with radius {radius} around the origin?",
        "r = {radius}\nsum(x * x + y * y <= r * r for x in range(-r, r + 1) for y in range(-r, r + 1))",
        lambda draw: {"radius": draw.randint(40, 200)},
        lattice_points,
    ),
    "powers": Kind(
        "What are the last {digits} digits of 1^1 + 2^2 + 3^3 + … + {top}^{top}, as a number?",
        "sum(k**k for k in range(1, {top} + 1)) % 10**{digits}",
        lambda draw: {"top": draw.randint(30, 300), "digits": draw.randint(4, 8)},
        last_digits,
    ),
    "harmonic": Kind(
        "Write 1 + 1/2 + 1/3 + … + 1/{top} as a fraction in lowest terms.",
        "from fractions import Fraction\nprint(sum(Fraction(1, n) for n in range(1, {top} + 1)))",
        lambda draw: {"top": draw.randint(8, 24)},
        harmonic,
    ),
    "collatz": Kind(
        "Which starting number up to {limit} has the longest Collatz sequence? Of several take the smallest.",
        "def length(n):\n    steps = 1\n    while n != 1:\n        n = n // 2 if n % 2 == 0 else 3 * n + 1\n"
        "        steps += 1\n    return steps\nmax(range(1, {limit} + 1), key=lambda n: (length(n), -n))",
        lambda draw: {"limit": draw.randrange(300, 3_000, 25)},
        longest_collatz,
    ),
}


def row(kind: str, draw: random.Random) -> dict[str, Any]:
    """Build a question with its answer."""
    values = KINDS[kind].draw(draw)
    question = KINDS[kind].question.format(**values)
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": f"{question}\n{ASK}"}],
            "tools": [TOOL],
            "parallel_tool_calls": False,
        },
        "question": question,
        "expected_answer": str(KINDS[kind].answer(**values)),
        "problem": {"kind": kind, **values},
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different questions, the kinds in turn."""
    draw, kinds = random.Random(seed), list(KINDS)
    tasks: dict[str, dict[str, Any]] = {}
    for n in range(20 * count + 100):
        task = row(kinds[n % len(kinds)], draw)
        tasks.setdefault(task["question"], task)
        if len(tasks) == count:
            return list(tasks.values())
    raise SystemExit(f"there are only {len(tasks)} different questions; asked for {count}")


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
