"""The initial tables of the office: made from a fixed seed, the same for every session."""

import random
from datetime import datetime, timedelta

Row = dict[str, str]

NOW = datetime(2026, 3, 12, 9, 0)
"""A Thursday."""
ME = "Robin Vance"
DOMAIN = "northwind.example"

PEOPLE = (
    "Aisha Adeyemi", "Bruno Berg", "Carmen Castillo", "Dmitri Doyle", "Elena Eriksen", "Felix Fontaine", "Grace Garcia",
    "Hiro Haas", "Ines Ivanov", "Jonas Jensen", "Keiko Kimura", "Lars Lindt", "Mina Moreau", "Nadia Novak",
    "Omar Okafor", "Priya Patel",
)  # fmt: skip

SUBJECTS = (
    "Budget draft", "Office move", "Release notes", "Security training", "Team lunch", "Quarterly goals", "New badge",
    "Hiring plan", "Contract renewal", "Server outage", "Travel request", "Customer feedback", "Design review",
)  # fmt: skip
BODIES = (
    "Could you have a look at this by the end of the week?",
    "I have attached the latest version. Comments are welcome.",
    "This is ready from my side.",
    "Please tell me when you have a minute to talk about it.",
    "Thanks again for your help yesterday.",
)
EVENTS = (
    "Sprint planning", "Budget review", "Onboarding", "Design critique", "Architecture forum", "One-on-one",
    "Retrospective", "Customer call", "Risk workshop", "Roadmap update", "Hiring panel", "Data review",
)  # fmt: skip
VERBS = ("Fix", "Write", "Test", "Review", "Design", "Refactor", "Document", "Measure")
OBJECTS = (
    "login page", "billing export", "search index", "mobile menu", "error reports", "payment form", "audit log",
    "landing page", "image cache", "password reset", "report builder", "rate limiter",
)  # fmt: skip
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
STATUSES = ("Lead", "Qualified", "Proposal", "Won", "Lost")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")
SOURCES = ("direct", "referral", "search engine", "social media")
SURNAMES = (
    "Abbott", "Bauer", "Cohen", "Diaz", "Ellis", "Ferrari", "Gupta", "Hughes", "Ito", "Jacobs", "Klein", "Lopez",
    "Meyer", "Nolan", "Osei", "Park",
)  # fmt: skip
FIRST_NAMES = ("Alex", "Bea", "Chris", "Dana", "Evan", "Fay", "Gus", "Hana")


def address(name: str) -> str:
    """Return the email address of a colleague."""
    return f"{name.lower().replace(' ', '.')}@{DOMAIN}"


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def build_tables() -> dict[str, dict[str, Row]]:
    """Return every table by its name, every row by its id."""
    draw = random.Random("northwind")
    tables = {
        "emails": [_email(draw) for _ in range(160)],
        "calendar": _events(draw),
        "visits": [_visit(draw) for _ in range(400)],
        "tasks": _tasks(draw),
        "customers": _customers(draw),
    }
    numbered: dict[str, dict[str, Row]] = {
        name: {f"{number:08}": row for number, row in enumerate(rows, start=start)}
        for start, (name, rows) in zip((2000, 300, 70_000, 500, 900), tables.items(), strict=True)
    }
    numbered["plots"] = {}
    return numbered


def _email(draw: random.Random) -> Row:
    sent = NOW - timedelta(minutes=draw.randint(30, 40 * 24 * 60))
    return {
        "folder": "inbox",
        "address": address(draw.choice(PEOPLE)),
        "subject": draw.choice(SUBJECTS),
        "sent_datetime": stamp(sent),
        "body": draw.choice(BODIES),
    }


def _events(draw: random.Random) -> list[Row]:
    """Draw four meetings on every working day of four weeks, none at the same time as another."""
    rows = []
    for day in range(-7, 21):
        date = NOW.replace(hour=0) + timedelta(days=day)
        if date.weekday() >= 5:
            continue
        for hour, name in zip(sorted(draw.sample(range(9, 17), 4)), draw.sample(EVENTS, 4), strict=True):
            rows.append(
                {
                    "event_name": name,
                    "participant_email": address(draw.choice(PEOPLE)),
                    "event_start": stamp(date + timedelta(hours=hour)),
                    "duration": str(draw.choice((30, 45, 60))),
                }
            )
    return rows


def _visit(draw: random.Random) -> Row:
    return {
        "date_of_visit": (NOW - timedelta(days=draw.randint(1, 60))).strftime("%Y-%m-%d"),
        "page_views": str(draw.randint(1, 20)),
        "session_duration_seconds": str(draw.randint(5, 900)),
        "traffic_source": draw.choice(SOURCES),
        "user_engaged": draw.choice(("true", "false")),
    }


def _tasks(draw: random.Random) -> list[Row]:
    names = [f"{verb} {thing}" for verb in VERBS for thing in OBJECTS]
    return [
        {
            "task_name": name,
            "assigned_to_email": address(draw.choice(PEOPLE)),
            "list_name": draw.choice(LISTS),
            "due_date": (NOW + timedelta(days=draw.randint(-10, 30))).strftime("%Y-%m-%d"),
            "board": draw.choice(BOARDS),
        }
        for name in draw.sample(names, len(names))
    ]


def _customers(draw: random.Random) -> list[Row]:
    names = [f"{first_name} {surname}" for first_name in FIRST_NAMES for surname in SURNAMES]
    return [
        {
            "customer_name": name,
            "customer_email": f"{name.lower().replace(' ', '.')}@{draw.choice(('acme', 'initech', 'globex'))}.example",
            "customer_phone": f"555-{draw.randint(0, 9999):04}",
            "assigned_to_email": address(draw.choice(PEOPLE)),
            "last_contact_date": (NOW - timedelta(days=draw.randint(1, 60))).strftime("%Y-%m-%d"),
            "follow_up_by": (NOW + timedelta(days=draw.randint(1, 30))).strftime("%Y-%m-%d"),
            "product_interest": draw.choice(PRODUCTS),
            "status": draw.choice(STATUSES),
            "notes": "",
        }
        for name in draw.sample(names, 100)
    ]
