"""Write rows with several needles in a long text: `python generate.py OUT --rows 40 --seed 0`."""

import random
from dataclasses import dataclass
from typing import Any

from nemo_gym.data.generator_command import run_generator

LENGTHS = (400, 800, 1200, 1600, 2400)
"""Number of words around the needles, in turn."""
NEEDLE_COUNTS = (2, 3, 4, 5)
DISTRACTORS = 4
SENTENCES_PER_PARAGRAPH = 5

CITIES = [
    "Lisbon",
    "Oslo",
    "Quito",
    "Kyoto",
    "Tunis",
    "Bergen",
    "Cusco",
    "Dakar",
    "Esbjerg",
    "Faro",
    "Galway",
    "Hobart",
    "Izmir",
    "Jaipur",
    "Kazan",
    "Lima",
    "Malmo",
    "Nairobi",
    "Odense",
    "Porto",
    "Rabat",
    "Sapporo",
    "Tartu",
    "Utrecht",
    "Vienna",
    "Windhoek",
    "Yerevan",
    "Zagreb",
]
PLACES = ["New Haven", "San Marino", "Cape Town", "Santa Cruz"]
COLOURS = [
    "amber",
    "azure",
    "copper",
    "crimson",
    "emerald",
    "indigo",
    "ivory",
    "jade",
    "ochre",
    "olive",
    "pearl",
    "scarlet",
    "silver",
    "violet",
]
BIRDS = [
    "bunting",
    "curlew",
    "dipper",
    "falcon",
    "finch",
    "heron",
    "kestrel",
    "lark",
    "osprey",
    "plover",
    "puffin",
    "siskin",
    "swift",
    "wren",
]

SUBJECTS = [
    "the old ferry",
    "a line of poplars",
    "the harbour office",
    "the baker's cart",
    "a grey cat",
    "the night train",
    "the river",
    "a travelling choir",
    "the librarian",
    "the market hall",
    "a pair of swans",
    "the lighthouse",
    "the tram conductor",
    "the glass factory",
    "a retired teacher",
    "the botanical garden",
    "the postman",
    "a flock of starlings",
    "the town band",
    "the orchard",
]
ACTIONS = [
    "waited quietly beside",
    "moved slowly past",
    "was painted again after",
    "could be heard from",
    "cast a long shadow over",
    "kept its distance from",
    "was remembered by everyone near",
    "stood open behind",
    "looked smaller than",
    "drifted towards",
    "had been promised to",
    "gave its name to",
    "was closed because of",
    "was mended with help from",
]
OBJECTS = [
    "the stone bridge",
    "the empty square",
    "the railway yard",
    "the chestnut trees",
    "the bathing huts",
    "the school gate",
    "the fish market",
    "the north wall",
    "the clock tower",
    "the meadow",
    "the winter stage",
    "the copper roofs",
    "the canal",
    "the hospital garden",
    "the rope works",
    "the hill road",
]
TIMES = [
    "in the early light",
    "after the first frost",
    "for most of the summer",
    "on market days",
    "before the rain came",
    "while the bells were ringing",
    "once the visitors had left",
    "all through that mild winter",
    "without anyone noticing",
    "as it did every year",
]


@dataclass(frozen=True)
class Secret:
    """A kind of value to look for (`sentence`), and one that is easily mistaken for it (`other`)."""

    plural: str
    sentence: str
    other: str

    def value(self, draw: random.Random) -> str:
        if "code" in self.plural:
            return str(draw.randrange(1_000_000, 10_000_000))
        return f"{draw.choice(COLOURS)} {draw.choice(BIRDS)}"


SECRETS = (
    Secret("door codes", "The door code of the office in {name} is {value}.", "The fax number of {name} is {value}."),
    Secret("passphrases", "In {name} the passphrase is {value}.", "In {name} the passphrase used to be {value}."),
    Secret("locker codes", "Visitors open the locker in {name} with {value}.", "The lift in {name} is model {value}."),
)


def filler(draw: random.Random, words: int) -> list[str]:
    """Return sentences without numbers that have `words` words or a few more."""
    sentences: list[str] = []
    written = 0
    while written < words:
        parts = (draw.choice(SUBJECTS), draw.choice(ACTIONS), draw.choice(OBJECTS), draw.choice(TIMES))
        sentence = " ".join(parts)
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
        written += len(sentence.split())
    return sentences


def row(secret: Secret, needle_count: int, words: int, draw: random.Random) -> dict[str, Any]:
    """Build a text with `needle_count` needles, as many lures about the same places, and some distractors."""
    names = draw.sample([*CITIES, *PLACES], needle_count + DISTRACTORS)
    different = dict.fromkeys(secret.value(draw) for _ in range(20 * len(names)))  # a lure must not be right by chance
    drawn = iter(different)
    values = {name: next(drawn) for name in names}
    lures = [secret.other.format(name=name, value=next(drawn)) for name in names[:needle_count]]
    sentences = filler(draw, words)
    positions = sorted(draw.sample(range(len(sentences)), len(names) + len(lures)))
    inserted = [*(secret.sentence.format(name=name, value=value) for name, value in values.items()), *lures]
    draw.shuffle(inserted)
    for position, sentence in zip(reversed(positions), reversed(inserted), strict=True):
        sentences.insert(position, sentence)
    text = "\n\n".join(
        " ".join(sentences[start : start + SENTENCES_PER_PARAGRAPH])
        for start in range(0, len(sentences), SENTENCES_PER_PARAGRAPH)
    )
    needle_names = names[:needle_count]
    needles = [
        {"name": name, "value": values[name], "depth": _depth(text, secret, name, values)} for name in needle_names
    ]
    question = (
        f"Read the text between the lines, then answer the question behind it.\n---\n{text}\n---\n"
        f"What are the {secret.plural} of {', '.join(needle_names[:-1])} and {needle_names[-1]}? "
        "Answer with one line for each of them and for no other place, in the form\nplace: value"
    )
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "needles": needles,
        "distractors": names[needle_count:],
    }


def _depth(text: str, secret: Secret, name: str, values: dict[str, str]) -> float:
    return round(text.index(secret.sentence.format(name=name, value=values[name])) / len(text), 3)


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different texts; the lengths repeat from short to long."""
    draw = random.Random(f"multineedle {seed}")
    return [
        row(
            SECRETS[number % len(SECRETS)],
            NEEDLE_COUNTS[number % len(NEEDLE_COUNTS)],
            LENGTHS[number % len(LENGTHS)],
            draw,
        )
        for number in range(count)
    ]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
