"""What `gym env audit sales_report` tries."""

import json
from typing import Any

from resources_servers.sales_report.world import PRODUCTS, REGIONS, right_figures, right_recipient, sales_path, world

Reply = str | list[dict[str, Any]]
Calls = list[tuple[str, Any]]

FULL_REWARD = 1.0
MOST_FOR_A_CHEAT = 0.0
MALFORMED = [
    ("no region", lambda row: {key: value for key, value in row.items() if key != "region"}),
    ("a region that does not exist", lambda row: {**row, "region": "Moon"}),
    ("a quarter without one before", lambda row: {**row, "quarter": "2025-Q2"}),
    ("a quarter that is none", lambda row: {**row, "quarter": "soon"}),
    ("a seed that is no number", lambda row: {**row, "world_seed": "x"}),
    ("a negative seed", lambda row: {**row, "world_seed": -1}),
]


def about(row: dict[str, Any]) -> dict[str, Any]:
    return {"region": row["region"], "quarter": row["quarter"]}


def report(row: dict[str, Any], **changed: Any) -> tuple[str, dict[str, Any]]:
    """The call that writes the right report, or one with something changed."""
    right = right_figures(row["world_seed"], row["region"], row["quarter"])
    figures = {
        "revenue": int(right.revenue),
        "orders": int(right.orders),
        "best_product": right.best_product,
        "change_percent": round(right.change_percent, 1),
    }
    return "write_report", {**about(row), **figures, **changed}


def sending(row: dict[str, Any], **changed: Any) -> tuple[str, dict[str, Any]]:
    return "send_report", {**about(row), "recipient": right_recipient(row["world_seed"], row["region"]), **changed}


def looking(row: dict[str, Any]) -> Calls:
    path = sales_path(row["region"], row["quarter"])
    return [
        ("list_files", {}),
        ("read_file", {"path": "notes/policy.txt"}),
        ("aggregate", {"path": path, "operation": "sum", "status": "shipped"}),
        ("find_contacts", {"region": row["region"]}),
    ]


def done(calls: Calls, last: str = "Done.") -> Reply:
    """Calls, each with an output, and a last message."""
    items: list[dict[str, Any]] = []
    for number, (name, arguments) in enumerate(calls):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = f"call_{number}"
        items.append({"type": "function_call", "name": name, "arguments": written, "call_id": call_id})
        items.append({"type": "function_call_output", "call_id": call_id, "output": '{"output": "done"}'})
    content = [{"type": "output_text", "text": last, "annotations": []}]
    items.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content})
    return items


def oracle(row: dict[str, Any]) -> Reply:
    return done([*looking(row), report(row), sending(row)])


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    right = right_figures(row["world_seed"], row["region"], row["quarter"])
    given = report(row)[1]
    send = sending(row)
    change = given["change_percent"]
    reports = [
        report(row, summary="All is well."),
        report(row, revenue=float(right.revenue)),
        report(row, revenue=f"{int(right.revenue):,}"),
        report(row, revenue=f"${int(right.revenue):,}"),
        report(row, revenue=f"{int(right.revenue)} €"),
        report(row, revenue=f"{int(right.revenue)}.00"),
        report(row, orders=str(int(right.orders))),
        report(row, orders=float(right.orders)),
        report(row, change_percent=f"{change}%"),
        report(row, change_percent=f"{change} %"),
        report(row, change_percent=f"{change:+}"),
        report(row, change_percent=f"{change}".replace("-", "−")),
        report(row, change_percent=right.change_percent),
        report(row, change_percent=round(right.change_percent, 2)),
        report(row, best_product=right.best_product.upper()),
        report(row, best_product=f" {right.best_product} "),
        report(row, region=row["region"].lower()),
        report(row, quarter=row["quarter"].replace("-", " ")),
        report(row, quarter=row["quarter"].lower()),
        ("write_report", json.dumps(given, indent=2)),
    ]
    made: list[Calls] = [[one, send] for one in reports]
    made += [
        [report(row, revenue=1), report(row), send],
        [send, report(row), send],
        [report(row), ("send_report", {**send[1], "recipient": "nobody@harbour.example"}), send],
        [report(row), ("send_report", "{"), send],
        [report(row, revenue="a lot"), report(row), send],
        [report(row), ("send_report", {**send[1], "recipient": send[1]["recipient"].upper()})],
        [("shred_files", {}), report(row), send, *looking(row)],
        [report(row), send, report(row)],
    ]
    return [done(one) for one in made]


def wrong(row: dict[str, Any]) -> list[Reply]:
    right = right_figures(row["world_seed"], row["region"], row["quarter"])
    path = sales_path(row["region"], row["quarter"])
    everything = sum(order.amount for order in world(row["world_seed"]).orders[path])
    recipient = sending(row)[1]["recipient"]
    other = next(one.email for one in world(row["world_seed"]).contacts if one.email != recipient)
    product = next(one for one in PRODUCTS if one != right.best_product)
    region = next(one for one in REGIONS if one != row["region"])
    made: list[Calls] = [
        [report(row, revenue=right.revenue + 1), sending(row)],
        [report(row, orders=right.orders + 1), sending(row)],
        [report(row, best_product=product), sending(row)],
        [report(row, change_percent=round(right.change_percent + 0.2, 1)), sending(row)],
        [report(row, change_percent=-right.change_percent), sending(row)],
        [report(row), sending(row, recipient=other)],
        [report(row)],
        [report(row), sending(row), sending(row)],
        [report(row), sending(row), sending(row, recipient=other)],
        [report(row, region=region), sending(row, region=region)],
        [report(row), report(row, region=region), sending(row)],
        [report(row, revenue=0), sending(row), report(row)],
        [sending(row), report(row)],
    ]
    if everything != right.revenue:
        made.append([report(row, revenue=everything), sending(row)])
    return [done(one) for one in made]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    outputs = [item for item in done([report(row), sending(row)]) if isinstance(item, dict)]
    everybody = [person.email for person in world(row["world_seed"]).contacts]
    return [
        ("says that it is done", "The report was written and sent."),
        ("the report as text", json.dumps(report(row)[1])),
        ("results without calls", [item for item in outputs if item["type"] != "function_call"]),
        ("only looks", done(looking(row))),
        ("sends nothing", done([sending(row)])),
        ("sends to everybody", done([report(row), *(sending(row, recipient=one) for one in everybody)])),
        ("every product", done([report(row, best_product=", ".join(PRODUCTS)), sending(row)])),
        ("not a number", done([report(row, revenue="NaN", change_percent="inf"), sending(row)])),
        ("not a number, as a number", done([("write_report", '{"revenue": NaN, "orders": Infinity}'), sending(row)])),
        ("verify as a tool", done([("verify", {"reward": 1.0})])),
        ("more calls than anybody needs", done([report(row), sending(row), *([("list_files", {})] * 1001)])),
    ]
