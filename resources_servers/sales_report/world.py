"""A small company in files and contacts, made from a seed, and the right report about it."""

import random
from dataclasses import dataclass
from functools import lru_cache

REGIONS = ("North", "South", "East", "West")
QUARTERS = ("2025-Q2", "2025-Q3", "2025-Q4", "2026-Q1")
"""The first quarter exists only for comparison."""
PRODUCTS = ("Anchor", "Buoy", "Compass", "Dinghy", "Lantern")
STATUSES = ("shipped", "shipped", "shipped", "shipped", "returned", "cancelled")
PEOPLE = (
    "Ada Flores", "Ben Okoye", "Cleo Marsh", "Dov Stern", "Emi Tanaka", "Finn Walsh", "Gwen Price", "Hugo Lind",
    "Iris Novak", "Joel Ruiz", "Kira Bose", "Liam Quist",
)  # fmt: skip
COLUMNS = ("order_id", "product", "units", "amount", "status")

FORMAT = """How a quarterly sales report is written
- It covers one region and one quarter.
- revenue: the sum of the amounts of all orders that count.
- orders: how many orders count.
- best_product: the product with the highest revenue.
- change_percent: how much revenue changed against the quarter before, in percent of the earlier one, with one decimal;
  negative when it fell.
Which orders count is said in notes/policy.txt."""
POLICY = """Which orders count
Orders that were returned or cancelled do not count, in no figure and no quarter."""
RECIPIENTS = """Who gets a report
The regional manager of its region. When the manager is on leave, the deputy of that region instead.
A report is sent once, to one person."""


@dataclass(frozen=True)
class Order:
    order_id: str
    product: str
    units: int
    amount: int
    status: str


@dataclass(frozen=True)
class Contact:
    name: str
    role: str
    region: str
    email: str
    availability: str


@dataclass(frozen=True)
class Figures:
    """The figures of a report."""

    revenue: float
    orders: float
    best_product: str
    change_percent: float


@dataclass(frozen=True)
class World:
    files: dict[str, str]
    orders: dict[str, tuple[Order, ...]]
    """The rows of each sales file, by its path."""
    contacts: tuple[Contact, ...]


def sales_path(region: str, quarter: str) -> str:
    return f"sales/{quarter}/{region.lower()}.csv"


@lru_cache(maxsize=256)
def world(seed: int) -> World:
    """Return the company of a seed."""
    draw = random.Random(f"sales {seed}")
    files = {"notes/format.txt": FORMAT, "notes/policy.txt": POLICY, "notes/recipients.txt": RECIPIENTS}
    orders: dict[str, tuple[Order, ...]] = {}
    for quarter in QUARTERS:
        for region in REGIONS:
            path = sales_path(region, quarter)
            orders[path] = _orders(draw)
            lines = [",".join(COLUMNS), *(_line(order) for order in orders[path])]
            files[path] = "\n".join(lines)
    return World(files, orders, _contacts(draw))


def _orders(draw: random.Random) -> tuple[Order, ...]:
    """Draw orders in which one product clearly sells best among those that count."""
    orders = []
    best = draw.choice(PRODUCTS)
    for number in range(draw.randint(14, 22)):
        product = best if draw.random() < 0.45 else draw.choice(PRODUCTS)
        units = draw.randint(1, 9)
        price = 40 + 25 * PRODUCTS.index(product)
        orders.append(
            Order(f"{draw.randint(100, 999)}-{number:02}", product, units, units * price, draw.choice(STATUSES))
        )
    sums = sorted(_revenues(orders).values())
    return tuple(orders) if len(sums) > 1 and sums[-1] > sums[-2] else _orders(draw)


def _contacts(draw: random.Random) -> tuple[Contact, ...]:
    names = iter(draw.sample(PEOPLE, len(PEOPLE)))
    contacts = []
    for region in REGIONS:
        on_leave = draw.random() < 0.5
        for role in ("regional manager", "deputy", "analyst"):
            name = next(names)
            availability = "on leave" if role == "regional manager" and on_leave else "available"
            contacts.append(
                Contact(name, role, region, f"{name.lower().replace(' ', '.')}@harbour.example", availability)
            )
    return tuple(contacts)


def _line(order: Order) -> str:
    return ",".join(str(getattr(order, column)) for column in COLUMNS)


def _revenues(orders: "tuple[Order, ...] | list[Order]") -> dict[str, int]:
    sums: dict[str, int] = {}
    for order in orders:
        if order.status == "shipped":
            sums[order.product] = sums.get(order.product, 0) + order.amount
    return sums


def expected_figures(seed: int, region: str, quarter: str) -> Figures:
    """Return the figures of the right report."""
    here = world(seed)
    before = QUARTERS[QUARTERS.index(quarter) - 1]
    now, then = (_revenues(here.orders[sales_path(region, one)]) for one in (quarter, before))
    revenue, earlier = sum(now.values()), sum(then.values())
    count = sum(order.status == "shipped" for order in here.orders[sales_path(region, quarter)])
    best = max(now, key=lambda product: now[product])
    return Figures(revenue, count, best, (revenue - earlier) / earlier * 100)


def expected_recipient(seed: int, region: str) -> str:
    """Return the address of the right recipient."""
    people = {contact.role: contact for contact in world(seed).contacts if contact.region == region}
    manager = people["regional manager"]
    return people["deputy"].email if manager.availability == "on leave" else manager.email
