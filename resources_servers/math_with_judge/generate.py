"""Write rows of procedural algebra: `python generate.py OUT --rows 40 --seed 0`."""

import random
from fractions import Fraction
from typing import Any

from nemo_gym.data.generator_command import question_rows, run_generator

ASK = "Put your final answer in \\boxed{}."


def _linear(draw: random.Random) -> tuple[str, str]:
    a, b, c = draw.randint(2, 9), draw.randint(1, 20), draw.randint(1, 20)
    root = Fraction(c - b, a)
    return f"Solve ${a}x + {b} = {c}$ for $x$.", _latex(root)


def _quadratic(draw: random.Random) -> tuple[str, str]:
    one, other = draw.sample(range(-9, 10), 2)
    middle, last = -(one + other), one * other
    return f"Find all real solutions of $x^2 {middle:+d}x {last:+d} = 0$.", f"{min(one, other)}, {max(one, other)}"


def _expansion(draw: random.Random) -> tuple[str, str]:
    a, b = draw.randint(1, 9), draw.randint(1, 9)
    return f"Expand $(x+{a})(x+{b})$.", f"$x^2 + {a + b}x + {a * b}$"


def _root(draw: random.Random) -> tuple[str, str]:
    outside, inside = draw.randint(2, 9), draw.choice([2, 3, 5, 6, 7])
    return f"Simplify $\\sqrt{{{outside * outside * inside}}}$.", f"{outside}\\sqrt{{{inside}}}"


def _inequality(draw: random.Random) -> tuple[str, str]:
    low, width = draw.randint(-9, 9), draw.randint(2, 9)
    return f"Write ${low} \\le x < {low + width}$ as an interval.", f"[{low}, {low + width})"


KINDS = (_linear, _quadratic, _expansion, _root, _inequality)


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different problems, the kinds in turn."""
    return question_rows(count, seed=seed, kinds=KINDS, instruction=ASK)


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
