"""Write questions about two small databases, each with its query: `python generate.py OUT --rows 40 --seed 0`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.bird_sql.databases import CITIES, COUNTRIES, FRUITS, GENRES, SCHEMAS, VILLAGES

ASK = (
    "Write one SQLite query that answers the question. Put it into a fenced block marked sql, the last of your answer."
)
Values = dict[str, Any]


@dataclass(frozen=True)
class QuestionKind:
    """One kind of question, the query that answers it, and a similar wrong query."""

    db_id: str
    difficulty: str
    question: str
    sql: str
    wrong: str
    draw: Callable[[random.Random], Values]


KINDS = {
    "pages": QuestionKind(
        "library",
        "simple",
        "What are the titles of the {genre} books with more than {pages} pages?",
        "SELECT title FROM book WHERE genre = '{genre}' AND pages > {pages}",
        "SELECT title FROM book WHERE genre = '{genre}'",
        lambda chance: {"genre": chance.choice(GENRES), "pages": chance.randrange(200, 420, 10)},
    ),
    "authors": QuestionKind(
        "library",
        "simple",
        "How many books of each genre are by authors from {country}? Give genre and number.",
        "SELECT book.genre, COUNT(*) FROM book JOIN author ON author.id = book.author_id "
        "WHERE author.country = '{country}' GROUP BY book.genre",
        "SELECT genre, COUNT(*) FROM book GROUP BY genre",
        lambda chance: {"country": chance.choice(COUNTRIES[:2])},
    ),
    "open_loans": QuestionKind(
        "library",
        "moderate",
        "Which members from {city} have a book that was lent in {year} or later and is not returned? Give their names.",
        "SELECT DISTINCT member.name FROM member JOIN loan ON loan.member_id = member.id "
        "WHERE member.city = '{city}' AND loan.returned IS NULL AND loan.lent >= '{year}-01-01'",
        "SELECT DISTINCT member.name FROM member JOIN loan ON loan.member_id = member.id "
        "WHERE member.city <> '{city}' AND loan.returned IS NULL AND loan.lent >= '{year}-01-01'",
        lambda chance: {"city": chance.choice(CITIES), "year": chance.choice((2020, 2021))},
    ),
    "never_lent": QuestionKind(
        "library",
        "moderate",
        "What are the titles of the books from {year} or later that nobody has borrowed?",
        "SELECT title FROM book WHERE year >= {year} AND id NOT IN (SELECT book_id FROM loan)",
        "SELECT title FROM book WHERE id NOT IN (SELECT book_id FROM loan) AND year < {year}",
        lambda chance: {"year": chance.randint(1951, 1968)},
    ),
    "readers": QuestionKind(
        "library",
        "challenging",
        "Who borrowed books of more than {count} different authors? Give the name and the number of authors.",
        "SELECT member.name, COUNT(DISTINCT book.author_id) FROM loan JOIN book ON book.id = loan.book_id "
        "JOIN member ON member.id = loan.member_id GROUP BY member.id HAVING COUNT(DISTINCT book.author_id) > {count}",
        "SELECT member.name, COUNT(book.author_id) FROM loan JOIN book ON book.id = loan.book_id "
        "JOIN member ON member.id = loan.member_id GROUP BY member.id HAVING COUNT(book.author_id) > {count}",
        lambda chance: {"count": chance.randint(2, 6)},
    ),
    "thickest": QuestionKind(
        "library",
        "challenging",
        "For every author born after {born}: the name and the title of the book with the most pages.",
        "SELECT author.name, book.title FROM author JOIN book ON book.author_id = author.id WHERE author.born > {born} "
        "AND book.pages = (SELECT MAX(pages) FROM book AS other WHERE other.author_id = author.id)",
        "SELECT author.name, book.title FROM author JOIN book ON book.author_id = author.id WHERE author.born > {born} "
        "AND book.pages = (SELECT MIN(pages) FROM book AS other WHERE other.author_id = author.id)",
        lambda chance: {"born": chance.randint(1900, 1935)},
    ),
    "trees": QuestionKind(
        "orchard",
        "simple",
        "How many {fruit} trees were planted before {year}?",
        "SELECT COUNT(*) FROM tree WHERE fruit = '{fruit}' AND planted < {year}",
        "SELECT COUNT(*) + 1 FROM tree WHERE fruit = '{fruit}' AND planted < {year}",
        lambda chance: {"fruit": chance.choice(FRUITS), "year": chance.randint(1990, 2012)},
    ),
    "harvest": QuestionKind(
        "orchard",
        "moderate",
        "How many kilograms of each fruit were picked in {season}? Give fruit and total.",
        "SELECT tree.fruit, SUM(picking.kilograms) FROM picking JOIN tree ON tree.id = picking.tree_id "
        "WHERE picking.season = {season} GROUP BY tree.fruit",
        "SELECT tree.fruit, AVG(picking.kilograms) FROM picking JOIN tree ON tree.id = picking.tree_id "
        "WHERE picking.season = {season} GROUP BY tree.fruit",
        lambda chance: {"season": chance.randint(2019, 2023)},
    ),
    "villages": QuestionKind(
        "orchard",
        "moderate",
        "Which orchards outside of {village} have more than {hectares} hectares? Give name and village.",
        "SELECT name, village FROM orchard WHERE village <> '{village}' AND hectares > {hectares}",
        "SELECT village, name FROM orchard WHERE village <> '{village}' AND hectares > {hectares}",
        lambda chance: {"village": chance.choice(VILLAGES), "hectares": chance.choice((1, 1.5, 2))},
    ),
    "pickers": QuestionKind(
        "orchard",
        "moderate",
        "Who picked more than {kilograms} kilograms in all? Leave out pickings without a picker.",
        "SELECT picker FROM picking WHERE picker IS NOT NULL GROUP BY picker HAVING SUM(kilograms) > {kilograms}",
        "SELECT picker FROM picking GROUP BY picker HAVING SUM(kilograms) <= {kilograms}",
        lambda chance: {"kilograms": chance.randrange(800, 1_100, 20)},
    ),
    "unpicked": QuestionKind(
        "orchard",
        "challenging",
        "How many {fruit} trees had no picking in {season}?",
        "SELECT COUNT(*) FROM tree WHERE fruit = '{fruit}' AND NOT EXISTS "
        "(SELECT 1 FROM picking WHERE picking.tree_id = tree.id AND picking.season = {season})",
        "SELECT COUNT(*) FROM tree LEFT JOIN picking ON picking.tree_id = tree.id WHERE tree.fruit = '{fruit}' "
        "AND picking.id IS NULL",
        lambda chance: {"fruit": chance.choice(FRUITS), "season": chance.randint(2019, 2023)},
    ),
    "best_season": QuestionKind(
        "orchard",
        "challenging",
        "In which season did {village} bring in the most? Give the season.",
        "SELECT picking.season FROM picking JOIN tree ON tree.id = picking.tree_id JOIN orchard ON orchard.id = "
        "tree.orchard_id WHERE orchard.village = '{village}' GROUP BY picking.season "
        "ORDER BY SUM(picking.kilograms) DESC LIMIT 1",
        "SELECT picking.season FROM picking JOIN tree ON tree.id = picking.tree_id JOIN orchard ON orchard.id = "
        "tree.orchard_id WHERE orchard.village = '{village}' GROUP BY picking.season "
        "ORDER BY SUM(picking.kilograms) LIMIT 1",
        lambda chance: {"village": chance.choice(VILLAGES)},
    ),
}


def row(name: str, chance: random.Random) -> dict[str, Any]:
    """Build one question with its query."""
    kind = KINDS[name]
    values = kind.draw(chance)
    question = kind.question.format(**values)
    prompt = f"A SQLite database has these tables:\n\n{SCHEMAS[kind.db_id]}\n\n{question}\n{ASK}"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "db_id": kind.db_id,
        "question": question,
        "evidence": "",
        "sql": kind.sql.format(**values),
        "difficulty": kind.difficulty,
        "problem": {"kind": name, **values},
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different questions, of every kind in turn."""
    chance, kinds = random.Random(seed), list(KINDS)
    chance.shuffle(kinds)
    questions: dict[str, dict[str, Any]] = {}
    for n in range(20 * count + 100):
        task = row(kinds[n % len(kinds)], chance)
        questions.setdefault(task["question"], task)
        if len(questions) == count:
            return list(questions.values())
    raise SystemExit(f"there are only {len(questions)} different questions; asked for {count}")


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
