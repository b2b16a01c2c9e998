"""Twelve small programming problems: statement, random inputs, right answers."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DRAWS = 200


@dataclass(frozen=True)
class Problem:
    """One problem; `answer` computes the right output."""

    name: str
    difficulty: str
    statement: str
    draw: Callable[[random.Random], tuple[Any, ...]]
    answer: Callable[..., Any]
    fn_name: str | None = None
    write: Callable[..., str] = lambda *values: "\n".join(map(str, values))
    """Writes the values of one test as text on stdin."""
    edges: tuple[tuple[Any, ...], ...] = ()
    """Values that every set of tests contains."""

    def tests(self, chance: random.Random, count: int) -> list[tuple[str, str]]:
        """Draw different inputs and compute their outputs, in the form of the data."""
        drawn = [self.test(*self.draw(chance)) for _ in range(DRAWS)]
        edges = [self.test(*values) for values in self.edges]
        others = [test for test in dict.fromkeys(drawn) if test not in edges]
        return others[: count - len(edges)] + edges

    def test(self, *values: Any) -> tuple[str, str]:
        expected = self.answer(*values)
        if self.fn_name is not None:
            return "\n".join(json.dumps(value) for value in values), json.dumps(expected)
        return self.write(*values), str(expected)


def numbers(chance: random.Random, least: int = 1, most: int = 30, size: int = 50) -> list[int]:
    return [chance.randint(-size, size) for _ in range(chance.randint(least, most))]


def _count_and_values(values: list[int]) -> str:
    return f"{len(values)}\n{' '.join(map(str, values))}"


def even_total(values: list[int]) -> int:
    return sum(value for value in values if value % 2 == 0)


def is_balanced(text: str) -> str:
    while (shorter := text.replace("()", "").replace("[]", "").replace("{}", "")) != text:
        text = shorter
    return "NO" if text else "YES"


def _brackets(chance: random.Random) -> tuple[str]:
    def nested_pairs(depth: int) -> str:
        if depth == 0 or chance.random() < 0.2:
            return ""
        left, right = chance.choice([("(", ")"), ("[", "]"), ("{", "}")])
        return left + nested_pairs(depth - 1) + right + nested_pairs(depth - 1)

    text = nested_pairs(5) or "()"
    dice = chance.random()
    if dice < 0.3:
        position = chance.randrange(len(text))
        text = text[:position] + chance.choice("()[]{}") + text[position + 1 :]
    elif dice < 0.6:
        text = "".join(chance.sample(text, len(text)))  # as many of each, in another order
    return (text,)


def longest_climb(values: list[int]) -> int:
    ends = [i for i in range(1, len(values)) if values[i] <= values[i - 1]]
    return max(b - a for a, b in zip([0, *ends], [*ends, len(values)], strict=True))


def fewest_coins(amount: int, coins: list[int]) -> int:
    reached, steps = {0}, 0
    while amount not in reached:
        wider = reached | {made + coin for made in reached for coin in coins if made + coin <= amount}
        if wider == reached:
            return -1
        reached, steps = wider, steps + 1
    return steps


def way_out(grid: list[str]) -> int:
    open_cells = {(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell == "."}
    seen, edge, steps = {(0, 0)}, {(0, 0)}, 0
    while edge:
        if (len(grid) - 1, len(grid[0]) - 1) in edge:
            return steps
        around = {(y + dy, x + dx) for y, x in edge for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))}
        edge, steps = (around & open_cells) - seen, steps + 1
        seen |= edge
    return -1


def _grid(chance: random.Random) -> tuple[list[str]]:
    height, width = chance.randint(2, 9), chance.randint(2, 9)
    cells = [["#" if chance.random() < 0.28 else "." for _ in range(width)] for _ in range(height)]
    cells[0][0] = cells[-1][-1] = "."
    return (["".join(row) for row in cells],)


def mean_height(values: list[int]) -> str:
    return f"{sum(values) / len(values):.2f}"


def count_pairs(nums: list[int], target: int) -> int:
    return sum(nums[i] + nums[j] == target for j in range(len(nums)) for i in range(j))


def merge_spans(spans: list[list[int]]) -> list[list[int]]:
    covered = sorted({point for start, end in spans for point in range(2 * start, 2 * end + 1)})
    breaks = [i for i in range(1, len(covered)) if covered[i] != covered[i - 1] + 1]
    pieces = zip([0, *breaks], [*breaks, len(covered)], strict=True)
    return [[covered[first] // 2, covered[last - 1] // 2] for first, last in pieces]


def _spans(chance: random.Random) -> tuple[list[list[int]]]:
    starts = [chance.randint(0, 40) for _ in range(chance.randint(1, 10))]
    return ([[start, start + chance.randint(1, 8)] for start in starts],)


def rotate(text: str, steps: int) -> str:
    return "".join(text[(position - steps) % len(text)] for position in range(len(text)))


def common_prefix(words: list[str]) -> str:
    most = min(map(len, words))
    return max((words[0][:n] for n in range(most + 1) if len({word[:n] for word in words}) == 1), key=len)


def unlike_letters(s: str) -> int:
    return max(j - i for i in range(len(s)) for j in range(i + 1, len(s) + 1) if len(set(s[i:j])) == j - i)


def spiral(matrix: list[list[int]]) -> list[int]:
    out: list[int] = []
    rows = [list(row) for row in matrix]
    while rows:
        out += rows.pop(0)
        rows = [list(row) for row in zip(*rows, strict=True)][::-1]
    return out


def _matrix(chance: random.Random) -> tuple[list[list[int]]]:
    height, width = chance.randint(1, 6), chance.randint(1, 6)
    return ([[chance.randint(-9, 99) for _ in range(width)] for _ in range(height)],)


def _word(chance: random.Random, letters: str, least: int, most: int) -> str:
    return "".join(chance.choice(letters) for _ in range(chance.randint(least, most)))


PROBLEMS = [
    Problem(
        "even_total",
        "easy",
        "Read n, then a line with n whole numbers. Print the sum of the even ones.",
        lambda chance: (numbers(chance),),
        even_total,
        write=_count_and_values,
    ),
    Problem(
        "balanced",
        "easy",
        "Read a line of brackets ()[]{}. Print YES when every bracket is closed by its own kind in the right order, "
        "else NO.",
        _brackets,
        is_balanced,
        edges=(("([)]",), (")(",), ("((",)),
    ),
    Problem(
        "longest_climb",
        "easy",
        "Read n, then a line with n whole numbers. Print the length of the longest run of neighbours in which every "
        "number is greater than the one before it.",
        lambda chance: (numbers(chance, most=40, size=9),),
        longest_climb,
        write=_count_and_values,
    ),
    Problem(
        "fewest_coins",
        "medium",
        "Read an amount, then a line with the values of the coins, of which there are plenty. Print the smallest "
        "number of coins that make up the amount, or -1.",
        lambda chance: (chance.randint(1, 60), sorted(chance.sample(range(2, 25), chance.randint(1, 4)))),
        fewest_coins,
        write=lambda amount, coins: f"{amount}\n{' '.join(map(str, coins))}",
    ),
    Problem(
        "way_out",
        "medium",
        "Read h and w, then h lines of w characters: . is free, # is a wall. Print the number of steps of the shortest "
        "way from the upper left corner to the lower right one, moving up, down, left or right, or -1.",
        _grid,
        way_out,
        write=lambda grid: f"{len(grid)} {len(grid[0])}\n" + "\n".join(grid),
    ),
    Problem(
        "mean_height",
        "easy",
        "Read a line with four whole numbers. Print their mean with two digits after the point.",
        lambda chance: ([chance.randint(0, 400) for _ in range(4)],),
        mean_height,
        write=lambda values: " ".join(map(str, values)),
    ),
    Problem(
        "count_pairs",
        "easy",
        "Write a function `count_pairs(nums, target)`: in how many ways can two different places of the list be chosen "
        "so that their numbers add up to target?",
        lambda chance: (numbers(chance, most=25, size=6), chance.randint(-6, 6)),
        count_pairs,
        fn_name="count_pairs",
    ),
    Problem(
        "merged",
        "medium",
        "Write a function `merged(spans)`: a list of [start, end] spans becomes a sorted list in which spans that "
        "overlap or touch are one.",
        _spans,
        merge_spans,
        fn_name="merged",
    ),
    Problem(
        "rotated",
        "easy",
        "Write a function `rotated(text, steps)`: the text turned to the right by so many places, which may be more "
        "than it has, or negative.",
        lambda chance: (_word(chance, "abcdefg", 1, 12), chance.randint(-30, 30)),
        rotate,
        fn_name="rotated",
    ),
    Problem(
        "common_prefix",
        "easy",
        "Write a class `Solution` with a method `common_prefix(self, words: List[str]) -> str`: the longest beginning "
        "all words share.",
        lambda chance: ([_word(chance, "ab", 1, 2) + _word(chance, "ab", 2, 6) for _ in range(chance.randint(1, 3))],),
        common_prefix,
        fn_name="common_prefix",
    ),
    Problem(
        "unlike_letters",
        "medium",
        "Write a class `Solution` with a method `unlikeLetters(self, s: str) -> int`: the length of the longest piece "
        "of s in which no letter occurs twice.",
        lambda chance: (_word(chance, "abcdefgh", 1, 30),),
        unlike_letters,
        fn_name="unlikeLetters",
    ),
    Problem(
        "spiral",
        "hard",
        "Write a function `spiral(matrix)`: the numbers of a matrix in the order of a walk around it, clockwise from "
        "the upper left corner and further and further inside.",
        _matrix,
        spiral,
        fn_name="spiral",
    ),
]
BY_NAME = {problem.name: problem for problem in PROBLEMS}
