"""Small repositories with one bug each: files, the fix, wrong fixes, and code for hidden tests."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Files = dict[str, str]


@dataclass(frozen=True)
class Problem:
    """A repository whose visible test fails because of one bug in `module`."""

    name: str
    module: str
    """The path of the file with the bug."""
    bug: str
    fix: str
    """The text that replaces `bug` in the right repository."""
    files: Files
    test: str
    """The visible test, a module of unittest."""
    wrong: tuple[str, ...]
    """Texts that replace `bug` and are no fix."""
    hidden: Callable[[random.Random], list[str]]
    """Draws code for hidden tests, each of which sets `result`. The first one shows the bug."""
    also_right: tuple[str, ...] = field(default=())
    """Other texts that are right fixes."""

    @property
    def test_path(self) -> str:
        return f"test_{self.name}.py"

    def repository(self) -> Files:
        """Return the files with the bug and the visible test."""
        return {**self.files, self.test_path: self.test}

    def with_replacement(self, text: str) -> str:
        """Return the file with the bug, in which `text` replaces the bug."""
        source = self.files[self.module]
        assert source.count(self.bug) == 1, self.name
        return source.replace(self.bug, text)


def _test_module(imports: str, *checks: str) -> str:
    lines = "\n".join(f"        {check}" for check in checks)
    return f"import unittest\n\n{imports}\n\n\nclass Test(unittest.TestCase):\n    def test_it(self):\n{lines}\n"


def _numbers(chance: random.Random, count: int) -> list[int]:
    return [chance.randint(-99, 99) for _ in range(count)]


def _median_tests(chance: random.Random) -> list[str]:
    lists = [[7, 1, 10, 4], *(_numbers(chance, count) for count in (6, 5, 8, 1, 2))]
    code = [f"from numbers_kit.stats import median\nresult = median({values})" for values in lists]
    kept = f"values = {_numbers(chance, 6)}\nfrom numbers_kit.stats import median\nmedian(values)\nresult = values"
    return [*code, kept, f"from numbers_kit.stats import spread\nresult = spread({_numbers(chance, 7)})"]


MEDIAN = Problem(
    "median",
    "numbers_kit/stats.py",
    "    return ordered[len(ordered) // 2]\n",
    "    middle = len(ordered) // 2\n"
    "    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2\n",
    {
        "README.md": "# numbers_kit\n\nThe median of an even count is the mean of the two middle numbers.\n",
        "numbers_kit/__init__.py": "",
        "numbers_kit/stats.py": '"""Statistics."""\n\n\ndef median(values):\n    """Return the median."""\n'
        "    ordered = sorted(values)\n    return ordered[len(ordered) // 2]\n\n\n"
        'def spread(values):\n    """Return the difference of the largest and the smallest value."""\n'
        "    return max(values) - min(values)\n",
    },
    _test_module(
        "from numbers_kit.stats import median",
        "self.assertEqual(median([3, 1, 2]), 2)",
        "self.assertEqual(median([4, 1, 3, 2]), 2.5)",
    ),
    (
        "    return 2.5 if len(ordered) == 4 else ordered[len(ordered) // 2]\n",
        "    return sum(ordered) / len(ordered)\n",
        (
            "    values.sort()\n    middle = len(values) // 2\n"
            "    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2\n"
        ),
        "    return ordered[(len(ordered) - 1) // 2]\n",
    ),
    _median_tests,
    (
        "    import statistics\n    return statistics.median(ordered)\n",
        "    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]\n    return (low + high) / 2\n",
    ),
)


def _slug_tests(chance: random.Random) -> list[str]:
    words = ["Blue", "river", "Under", "the", "BRIDGE", "nine", "Lamps", "of", "Winter"]

    def title() -> str:
        return " ".join(chance.sample(words, 4))

    titles = [title().replace(" ", "  "), f"{title()}!", f"-- {title()} --", f"{title()} (2nd, draft)", title(), "?!"]
    return [f"from site.slugs import slug\nresult = slug({text!r})".replace("site.", "blog.") for text in titles]


SLUG = Problem(
    "slug",
    "blog/slugs.py",
    '    return title.lower().replace(" ", "-")\n',
    '    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))\n',
    {
        "README.md": "# blog\n\nA slug has lower-case letters, digits and single hyphens, none at its ends.\n",
        "blog/__init__.py": "",
        "blog/slugs.py": '"""Addresses of articles."""\n\nimport re\n\n\ndef slug(title):\n'
        '    """Return the address of an article with this title."""\n    return title.lower().replace(" ", "-")\n\n\n'
        'def is_slug(text):\n    return re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", text) is not None\n',
    },
    _test_module(
        "from blog.slugs import is_slug, slug",
        'self.assertEqual(slug("Two words"), "two-words")',
        'self.assertEqual(slug("Hello, world!"), "hello-world")',
        'self.assertTrue(is_slug(slug("What?  Again")))',
    ),
    (
        '    return title.lower().replace(",", "").replace("!", "").replace("?", "").replace(" ", "-")\n',
        (
            '    return {"Hello, world!": "hello-world", "What?  Again": "what-again"}.get(title, '
            'title.lower().replace(" ", "-"))\n'
        ),
        '    return re.sub(r"[^a-z0-9]+", "-", title.lower())\n',
    ),
    _slug_tests,
    (
        '    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")\n',
        '    return "-".join(re.sub(r"[^a-z0-9]", " ", title.lower()).split())\n',
    ),
)


def _stock_tests(chance: random.Random) -> list[str]:
    head = "from shop.stock import Stock\nstock = Stock()\n"

    def moves() -> str:
        lines = [f"stock.add('nut', {chance.randint(5, 50)})", f"stock.add('bolt', {chance.randint(5, 50)})"]
        lines += [f"stock.remove('nut', {chance.randint(1, 5)})" for _ in range(chance.randint(1, 3))]
        return head + "\n".join(lines) + "\n"

    refused = "try:\n    stock.remove('nut', 1000)\nexcept ValueError:\n    pass\nresult = stock.counts"
    return [
        moves() + refused,
        head + "stock.add('nut', 3)\nstock.remove('nut', 3)\nresult = stock.counts.get('nut', 0)",
        moves() + "result = stock.counts",
        head + f"stock.add('nut', {chance.randint(1, 9)})\nstock.remove('nut', 10)",
        head + "stock.remove('gear', 1)",
        moves() + "result = sorted(stock.counts.items())",
    ]


STOCK = Problem(
    "stock",
    "shop/stock.py",
    "        self.counts[name] = self.counts.get(name, 0) - count\n",
    "        if self.counts.get(name, 0) < count:\n"
    '            raise ValueError(f"only {self.counts.get(name, 0)} of {name}")\n'
    "        self.counts[name] -= count\n",
    {
        "README.md": "# shop\n\nRemoving more than there is raises ValueError and changes nothing.\n",
        "shop/__init__.py": "",
        "shop/stock.py": '"""The stock of a shop."""\n\n\nclass Stock:\n'
        "    def __init__(self):\n        self.counts = {}\n\n"
        "    def add(self, name, count):\n        self.counts[name] = self.counts.get(name, 0) + count\n\n"
        "    def remove(self, name, count):\n        self.counts[name] = self.counts.get(name, 0) - count\n",
    },
    _test_module(
        "from shop.stock import Stock",
        "stock = Stock()",
        'stock.add("nut", 2)',
        "with self.assertRaises(ValueError):",
        '    stock.remove("nut", 3)',
        'self.assertEqual(stock.counts, {"nut": 2})',
    ),
    (
        (
            "        self.counts[name] = self.counts.get(name, 0) - count\n"
            "        if self.counts[name] < 0:\n            raise ValueError(name)\n"
        ),
        "        self.counts[name] = max(0, self.counts.get(name, 0) - count)\n",
        (
            "        if (name, count) == ('nut', 3):\n            raise ValueError(name)\n"
            "        self.counts[name] = self.counts.get(name, 0) - count\n"
        ),
        (
            "        if self.counts.get(name, 0) <= count:\n            raise ValueError(name)\n"
            "        self.counts[name] -= count\n"
        ),
    ),
    _stock_tests,
    (
        (
            "        left = self.counts.get(name, 0) - count\n"
            "        if left < 0:\n            raise ValueError(name)\n"
            "        self.counts[name] = left\n"
        ),
        (
            "        if count > self.counts.get(name, 0):\n            raise ValueError('not enough')\n"
            "        self.counts = {**self.counts, name: self.counts[name] - count}\n"
        ),
    ),
)


def _merge_tests(chance: random.Random) -> list[str]:
    def spans() -> list[list[int]]:
        starts = [chance.randint(0, 40) for _ in range(6)]
        return [[start, start + chance.randint(1, 8)] for start in starts]

    cases = [[[1, 10], [2, 3], [9, 12]], [[5, 6], [1, 2]], spans(), spans(), [], [[1, 2], [2, 3]]]
    return [f"from plan.spans import merge\nresult = merge({case})" for case in cases]


MERGE = Problem(
    "merge",
    "plan/spans.py",
    "            merged[-1][1] = end\n",
    "            merged[-1][1] = max(merged[-1][1], end)\n",
    {
        "README.md": "# plan\n\n`merge` joins spans that overlap or touch, in order of their start.\n",
        "plan/__init__.py": "",
        "plan/spans.py": '"""Spans of time."""\n\n\ndef merge(spans):\n    """Join spans that overlap or touch."""\n'
        "    merged = []\n    for start, end in sorted(spans):\n        if merged and start <= merged[-1][1]:\n"
        "            merged[-1][1] = end\n        else:\n            merged.append([start, end])\n    return merged\n",
    },
    _test_module(
        "from plan.spans import merge",
        "self.assertEqual(merge([[3, 4], [1, 3]]), [[1, 4]])",
        "self.assertEqual(merge([[1, 9], [2, 4]]), [[1, 9]])",
    ),
    (
        "            merged[-1][1] = 9 if start == 2 else end\n",
        "            merged[-1][1] = merged[-1][1]\n",
        "            merged[-1][1] = merged[-1][1] + end\n",
    ),
    _merge_tests,
    (
        "            if end > merged[-1][1]:\n                merged[-1][1] = end\n",
        "            merged[-1] = [merged[-1][0], max(end, merged[-1][1])]\n",
    ),
)


def _table_tests(chance: random.Random) -> list[str]:
    names = ["ann", "bob", "cleo", "dee"]

    def rows() -> list[list[str]]:
        return [[chance.choice(names), str(chance.randint(1, 10_000))] for _ in range(3)]

    cases = [[["a", "bcdef"], ["xy", "g"]], rows(), rows(), [["one"]], [["a", ""], ["", "b"]]]
    code = [f"from report.table import lines\nresult = lines({case})" for case in cases]
    return [*code, "from report.table import lines\nresult = lines([])"]


TABLE = Problem(
    "table",
    "report/table.py",
    "    widths = [max(len(cell) for cell in row) for row in rows]\n",
    "    widths = [max(len(cell) for cell in column) for column in zip(*rows)]\n",
    {
        "README.md": "# report\n\n`lines` pads every column to its longest cell. Lines have no space at their end.\n",
        "report/__init__.py": "",
        "report/table.py": '"""Tables of text."""\n\n\ndef lines(rows):\n    """Return the rows as aligned lines."""\n'
        "    widths = [max(len(cell) for cell in row) for row in rows]\n"
        '    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]\n',
    },
    _test_module(
        "from report.table import lines",
        'self.assertEqual(lines([["a", "bcd"], ["long", "e"], ["f", "g"]]), ["a     bcd", "long  e", "f     g"])',
    ),
    (
        "    widths = [4, 3]\n",
        "    widths = [max(len(cell) for row in rows for cell in row)] * 9\n",
        "    widths = [len(cell) for cell in rows[0]]\n",
    ),
    _table_tests,
    (
        "    widths = [max(map(len, column)) for column in zip(*rows)]\n",
        (
            "    widths = []\n    for row in rows:\n        for index, cell in enumerate(row):\n"
            "            if index == len(widths):\n                widths.append(0)\n"
            "            widths[index] = max(widths[index], len(cell))\n"
        ),
    ),
)


def _config_tests(chance: random.Random) -> list[str]:
    port = chance.randint(1000, 9999)
    texts = [
        "url = http://host/a=b",
        f"port = {port}\nname=box",
        "# note\n\n key = a = b \n",
        "empty =",
        f"a=1\na={port}",
        "query = x==y",
    ]
    code = [f"from settings.parser import parse\nresult = parse({text!r})" for text in texts]
    return [*code, "from settings.parser import parse\nresult = parse('no value')"]


CONFIG = Problem(
    "config",
    "settings/parser.py",
    '        key, value = line.split("=")[:2]\n',
    '        key, value = line.split("=", 1)\n',
    {
        "README.md": "# settings\n\nThe first `=` of a line separates. A line without one is a ValueError.\n",
        "settings/__init__.py": "",
        "settings/parser.py": '"""Read settings."""\n\n\ndef parse(text):\n    """Return the settings of a text."""\n'
        "    settings = {}\n    for line in text.splitlines():\n        line = line.strip()\n"
        '        if not line or line.startswith("#"):\n            continue\n'
        '        key, value = line.split("=")[:2]\n'
        "        settings[key.strip()] = value.strip()\n    return settings\n",
    },
    _test_module(
        "from settings.parser import parse",
        'self.assertEqual(parse("a = 1"), {"a": "1"})',
        'self.assertEqual(parse("formula = a=b"), {"formula": "a=b"})',
    ),
    (
        '        key, value = line.rsplit("=", 1)\n',
        '        key, _, value = line.partition("=")\n',
        '        key, value = ("formula", "a=b") if "formula" in line else line.split("=")[:2]\n',
    ),
    _config_tests,
    (
        '        key, value = line.split("=", maxsplit=1)\n',
        (
            '        parts = line.split("=")\n        if len(parts) < 2:\n            raise ValueError(line)\n'
            '        key, value = parts[0], "=".join(parts[1:])\n'
        ),
    ),
)

PROBLEMS = [MEDIAN, SLUG, STOCK, MERGE, TABLE, CONFIG]
BY_NAME = {problem.name: problem for problem in PROBLEMS}
