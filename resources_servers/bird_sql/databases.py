"""Two small databases, generated from a fixed seed, and the lookup of others."""

import random
import re
import sqlite3
from functools import lru_cache
from pathlib import Path

LARGEST = 64 << 20
"""Bytes of a database: every query gets its copy."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

LIBRARY = """
CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL, born INTEGER NOT NULL);
CREATE TABLE book (id INTEGER PRIMARY KEY, title TEXT NOT NULL, author_id INTEGER NOT NULL REFERENCES author (id),
  genre TEXT NOT NULL, year INTEGER NOT NULL, pages INTEGER NOT NULL);
CREATE TABLE member (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, joined TEXT NOT NULL);
CREATE TABLE loan (id INTEGER PRIMARY KEY, book_id INTEGER NOT NULL REFERENCES book (id),
  member_id INTEGER NOT NULL REFERENCES member (id), lent TEXT NOT NULL, returned TEXT);
"""
ORCHARD = """
CREATE TABLE orchard (id INTEGER PRIMARY KEY, name TEXT NOT NULL, village TEXT NOT NULL, hectares REAL NOT NULL);
CREATE TABLE tree (id INTEGER PRIMARY KEY, orchard_id INTEGER NOT NULL REFERENCES orchard (id), fruit TEXT NOT NULL,
  planted INTEGER NOT NULL);
CREATE TABLE picking (id INTEGER PRIMARY KEY, tree_id INTEGER NOT NULL REFERENCES tree (id), season INTEGER NOT NULL,
  kilograms REAL NOT NULL, picker TEXT);
"""
SCHEMAS = {"library": LIBRARY.strip(), "orchard": ORCHARD.strip()}

GENRES = ("crime", "poetry", "travel", "science")
COUNTRIES = ("Norway", "Chile", "Japan", "Kenya", "Italy")
CITIES = ("Bergen", "Lima", "Kyoto")
FRUITS = ("apple", "pear", "plum", "cherry")
VILLAGES = ("Dale", "Holt", "Brook")
# fmt: off
_NAMES = ("Ada", "Bo", "Carl", "Dina", "Emil", "Frida", "Gro", "Hans", "Ines", "Jon",
          "Kari", "Liv", "Mona", "Nils", "Olga", "Per", "Runa", "Siri", "Tor", "Una")
_WORDS = ("River", "Stone", "Winter", "Harbour", "Glass", "Salt", "Morning", "Shadow",
          "Field", "Letter", "Bridge", "Ember", "Island", "Clock")
# fmt: on


def _fill_library(chance: random.Random, database: sqlite3.Connection) -> None:
    names = chance.sample(_NAMES, 12)
    authors = [(n, name, chance.choice(COUNTRIES), chance.randint(1900, 1985)) for n, name in enumerate(names, 1)]
    database.executemany("INSERT INTO author VALUES (?, ?, ?, ?)", authors)
    pairs = chance.sample([f"{one} and {other}" for one in _WORDS for other in _WORDS if one != other], 60)
    books = [
        (n, title, chance.randint(1, 12), chance.choice(GENRES), chance.randint(1950, 2020), chance.randint(80, 700))
        for n, title in enumerate(pairs, 1)
    ]
    database.executemany("INSERT INTO book VALUES (?, ?, ?, ?, ?, ?)", books)
    members = [(n, name, chance.choice(CITIES), _day(chance, 2015, 2019)) for n, name in enumerate(_NAMES, 1)]
    database.executemany("INSERT INTO member VALUES (?, ?, ?, ?)", members)
    loans = [
        (n, chance.randint(1, 60), chance.randint(1, 18), _day(chance, 2020, 2022), _day(chance, 2023, 2023))
        for n in range(1, 181)
    ]
    open_loans = [(*loan[:4], None if chance.random() < 0.15 else loan[4]) for loan in loans]
    database.executemany("INSERT INTO loan VALUES (?, ?, ?, ?, ?)", open_loans)


def _fill_orchard(chance: random.Random, database: sqlite3.Connection) -> None:
    names = chance.sample(_WORDS, 8)
    sizes = [round(chance.uniform(0.5, 9.5), 1) for _ in names]
    orchards = [(n, f"{names[n - 1]} Farm", chance.choice(VILLAGES), sizes[n - 1]) for n in range(1, len(names) + 1)]
    database.executemany("INSERT INTO orchard VALUES (?, ?, ?, ?)", orchards)
    trees = [(n, chance.randint(1, 7), chance.choice(FRUITS), chance.randint(1980, 2015)) for n in range(1, 91)]
    database.executemany("INSERT INTO tree VALUES (?, ?, ?, ?)", trees)
    weights = [round(chance.uniform(3, 90), 1) for _ in range(300)]
    pickings = [
        (n, chance.randint(1, 80), chance.randint(2019, 2023), weight, chance.choice(_NAMES[:9]))
        for n, weight in enumerate(weights, 1)
    ]
    anonymous = [(*picking[:4], None if chance.random() < 0.1 else picking[4]) for picking in pickings]
    database.executemany("INSERT INTO picking VALUES (?, ?, ?, ?, ?)", anonymous)


def _day(chance: random.Random, first: int, last: int) -> str:
    return f"{chance.randint(first, last)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"


_FILL = {"library": _fill_library, "orchard": _fill_orchard}


@lru_cache
def own_database(name: str) -> bytes:
    """Return a database of this folder as the bytes of its file."""
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(SCHEMAS[name])
        _FILL[name](random.Random(name), database)
        database.commit()
        return database.serialize()
    finally:
        database.close()


def find_database(name: str, folder: Path | None) -> bytes:
    """Return the database `<folder>/<name>/<name>.sqlite`, or without a folder the one of this server folder.

    Raises:
        LookupError: the database is missing, or too large to be copied for every query.
    """
    if folder is None:
        if name not in SCHEMAS:
            raise LookupError(f"there is no database {name!r}; there are {', '.join(SCHEMAS)}")
        return own_database(name)
    path = folder / name / f"{name}.sqlite"
    if _NAME.fullmatch(name) is None or not path.is_file():
        raise LookupError(f"there is no database {name!r} in `database_dir`")
    if path.stat().st_size > LARGEST:
        raise LookupError(f"the database {name!r} has more than {LARGEST >> 20} MiB")
    return path.read_bytes()
