"""Write rows with several needles in a long text: `python generate.py OUT --rows 40 --seed 0`."""

import random
from dataclasses import dataclass
from typing import Any

from nemo_gym.data.generated import write_generated

LENGTHS = (400, 800, 1200, 1600, 2400)
"""Words around the needles, one row after the other."""
ASKED = (2, 3, 4, 5)
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
    """A kind of thing to look for, and one that is easily taken for it."""

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
    """Sentences about nothing in particular, without a number in them, `words` words or a little more."""
    sentences: list[str] = []
    written = 0
    while written < words:
        parts = (draw.choice(SUBJECTS), draw.choice(ACTIONS), draw.choice(OBJECTS), draw.choice(TIMES))
        sentence = " ".join(parts)
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
        written += len(sentence.split())
    return sentences


def row(secret: Secret, asked: int, words: int, draw: random.Random) -> dict[str, Any]:
    """One text with `asked` needles, as many lures about the same places, and some places nobody asks for."""
    names = draw.sample([*CITIES, *PLACES], asked + DISTRACTORS)
    different = dict.fromkeys(secret.value(draw) for _ in range(20 * len(names)))  # a lure must not be right by chance
    drawn = iter(different)
    values = {name: next(drawn) for name in names}
    lures = [secret.other.format(name=name, value=next(drawn)) for name in names[:asked]]
    sentences = filler(draw, words)
    places = sorted(draw.sample(range(len(sentences)), len(names) + len(lures)))
    hidden = [*(secret.sentence.format(name=name, value=value) for name, value in values.items()), *lures]
    draw.shuffle(hidden)
    for place, sentence in zip(reversed(places), reversed(hidden), strict=True):
        sentences.insert(place, sentence)
    text = "\n\n".join(
        " ".join(sentences[start : start + SENTENCES_PER_PARAGRAPH])
        for start in range(0, len(sentences), SENTENCES_PER_PARAGRAPH)
    )
    wanted = names[:asked]
    needles = [{"name": name, "value": values[name], "depth": _depth(text, secret, name, values)} for name in wanted]
    question = (
        f"Read the text between the lines, then answer the question behind it.\n---\n{text}\n---\n"
        f"What are the {secret.plural} of {', '.join(wanted[:-1])} and {wanted[-1]}? "
        "Answer with one line for each of them and for no other place, in the form\nplace: value"
    )
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "needles": needles,
        "distractors": names[asked:],
    }


def _depth(text: str, secret: Secret, name: str, values: dict[str, str]) -> float:
    return round(text.index(secret.sentence.format(name=name, value=values[name])) / len(text), 3)


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` different texts, from short to long and over again."""
    draw = random.Random(f"multineedle {seed}")
    return [
        row(SECRETS[number % len(SECRETS)], ASKED[number % len(ASKED)], LENGTHS[number % len(LENGTHS)], draw)
        for number in range(count)
    ]


def main() -> None:
    write_generated(rows, __doc__)


if __name__ == "__main__":
    main()
