"""Right, odd, wrong and cheating replies for `gym env audit sales_report`."""

import json
from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from resources_servers.sales_report.world import (
    PRODUCTS,
    REGIONS,
    expected_figures,
    expected_recipient,
    sales_path,
    world,
)

Calls = list[tuple[str, Any]]

MALFORMED = [
    ("no region", lambda row: {key: value for key, value in row.items() if key != "region"}),
    ("a region that does not exist", lambda row: {**row, "region": "Moon"}),
    ("a quarter without one before", lambda row: {**row, "quarter": "2025-Q2"}),
    ("an unknown quarter", lambda row: {**row, "quarter": "soon"}),
    ("a seed that is no number", lambda row: {**row, "world_seed": "x"}),
    ("a negative seed", lambda row: {**row, "world_seed": -1}),
]


def report_key(row: dict[str, Any]) -> dict[str, Any]:
    return {"region": row["region"], "quarter": row["quarter"]}


def report_call(row: dict[str, Any], **changed: Any) -> tuple[str, dict[str, Any]]:
    """Return the call that writes the right report, or one with changed fields."""
    right = expected_figures(row["world_seed"], row["region"], row["quarter"])
    figures = {
        "revenue": int(right.revenue),
        "orders": int(right.orders),
        "best_product": right.best_product,
        "change_percent": round(right.change_percent, 1),
    }
    return "write_report", {**report_key(row), **figures, **changed}


def send_call(row: dict[str, Any], **changed: Any) -> tuple[str, dict[str, Any]]:
    return "send_report", {
        **report_key(row),
        "recipient": expected_recipient(row["world_seed"], row["region"]),
        **changed,
    }


def reading_calls(row: dict[str, Any]) -> Calls:
    path = sales_path(row["region"], row["quarter"])
    return [
        ("list_files", {}),
        ("read_file", {"path": "notes/policy.txt"}),
        ("aggregate", {"path": path, "operation": "sum", "status": "shipped"}),
        ("find_contacts", {"region": row["region"]}),
    ]


def finished_reply(calls: Calls, last: str = "Done.") -> Reply:
    """Return calls, each with an output, and a last message."""
    items = [
        item
        for number, (name, arguments) in enumerate(calls)
        for item in tool_call(name, arguments, '{"output": "done"}', call_id=f"call_{number}")
    ]
    return [*items, message(last)]


def oracle(row: dict[str, Any]) -> Reply:
    return finished_reply([*reading_calls(row), report_call(row), send_call(row)])


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    right = expected_figures(row["world_seed"], row["region"], row["quarter"])
    figures = report_call(row)[1]
    send = send_call(row)
    change = figures["change_percent"]
    reports = [
        report_call(row, summary="All is well."),
        report_call(row, revenue=float(right.revenue)),
        report_call(row, revenue=f"{int(right.revenue):,}"),
        report_call(row, revenue=f"${int(right.revenue):,}"),
        report_call(row, revenue=f"{int(right.revenue)} €"),
        report_call(row, revenue=f"{int(right.revenue)}.00"),
        report_call(row, orders=str(int(right.orders))),
        report_call(row, orders=float(right.orders)),
        report_call(row, change_percent=f"{change}%"),
        report_call(row, change_percent=f"{change} %"),
        report_call(row, change_percent=f"{change:+}"),
        report_call(row, change_percent=f"{change}".replace("-", "−")),
        report_call(row, change_percent=right.change_percent),
        report_call(row, change_percent=round(right.change_percent, 2)),
        report_call(row, best_product=right.best_product.upper()),
        report_call(row, best_product=f" {right.best_product} "),
        report_call(row, region=row["region"].lower()),
        report_call(row, quarter=row["quarter"].replace("-", " ")),
        report_call(row, quarter=row["quarter"].lower()),
        ("write_report", json.dumps(figures, indent=2)),
    ]
    call_lists: list[Calls] = [[one, send] for one in reports]
    call_lists += [
        [report_call(row, revenue=1), report_call(row), send],
        [send, report_call(row), send],
        [report_call(row), ("send_report", {**send[1], "recipient": "unknown@harbour.example"}), send],
        [report_call(row), ("send_report", "{"), send],
        [report_call(row, revenue="a lot"), report_call(row), send],
        [report_call(row), ("send_report", {**send[1], "recipient": send[1]["recipient"].upper()})],
        [("shred_files", {}), report_call(row), send, *reading_calls(row)],
        [report_call(row), send, report_call(row)],
    ]
    return [finished_reply(one) for one in call_lists]


def wrong(row: dict[str, Any]) -> list[Reply]:
    right = expected_figures(row["world_seed"], row["region"], row["quarter"])
    path = sales_path(row["region"], row["quarter"])
    everything = sum(order.amount for order in world(row["world_seed"]).orders[path])
    recipient = send_call(row)[1]["recipient"]
    other = next(one.email for one in world(row["world_seed"]).contacts if one.email != recipient)
    product = next(one for one in PRODUCTS if one != right.best_product)
    region = next(one for one in REGIONS if one != row["region"])
    call_lists: list[Calls] = [
        [report_call(row, revenue=right.revenue + 1), send_call(row)],
        [report_call(row, orders=right.orders + 1), send_call(row)],
        [report_call(row, best_product=product), send_call(row)],
        [report_call(row, change_percent=round(right.change_percent + 0.2, 1)), send_call(row)],
        [report_call(row, change_percent=-right.change_percent), send_call(row)],
        [report_call(row), send_call(row, recipient=other)],
        [report_call(row)],
        [report_call(row), send_call(row), send_call(row)],
        [report_call(row), send_call(row), send_call(row, recipient=other)],
        [report_call(row, region=region), send_call(row, region=region)],
        [report_call(row), report_call(row, region=region), send_call(row)],
        [report_call(row, revenue=0), send_call(row), report_call(row)],
        [send_call(row), report_call(row)],
    ]
    if everything != right.revenue:
        call_lists.append([report_call(row, revenue=everything), send_call(row)])
    return [finished_reply(one) for one in call_lists]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    outputs = [item for item in finished_reply([report_call(row), send_call(row)]) if isinstance(item, dict)]
    addresses = [person.email for person in world(row["world_seed"]).contacts]
    return [
        ("says that it is done", "The report was written and sent."),
        ("the report as text", json.dumps(report_call(row)[1])),
        ("results without calls", [item for item in outputs if item["type"] != "function_call"]),
        ("only looks", finished_reply(reading_calls(row))),
        ("sends nothing", finished_reply([send_call(row)])),
        (
            "sends to all contacts",
            finished_reply([report_call(row), *(send_call(row, recipient=one) for one in addresses)]),
        ),
        ("every product", finished_reply([report_call(row, best_product=", ".join(PRODUCTS)), send_call(row)])),
        ("not a number", finished_reply([report_call(row, revenue="NaN", change_percent="inf"), send_call(row)])),
        (
            "not a number, as a number",
            finished_reply([("write_report", '{"revenue": NaN, "orders": Infinity}'), send_call(row)]),
        ),
        ("verify as a tool", finished_reply([("verify", {"reward": 1.0})])),
        ("more calls than allowed", finished_reply([report_call(row), send_call(row), *([("list_files", {})] * 1001)])),
    ]
