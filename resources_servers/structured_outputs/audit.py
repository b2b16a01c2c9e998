"""Right, odd, wrong and cheating replies for `gym env audit structured_outputs`."""

import json
import re
from typing import Any

from nemo_gym.authoring.model_replies import Reply, tool_call

_ORDER = re.compile(r"(\w+) ordered (\d+) (\w+) and has (already|not yet) paid")
Order = dict[str, Any]


def _order(row: dict[str, Any]) -> Order:
    match = _ORDER.search(row["responses_create_params"]["input"][-1]["content"])
    assert match is not None
    customer, quantity, product, paid = match.groups()
    return {"customer": customer, "product": product, "quantity": int(quantity), "paid": paid == "already"}


def _xml(order: Order) -> str:
    fields = "".join(f"<{name}>{_scalar(value)}</{name}>" for name, value in order.items())
    return f"<order>{fields}</order>"


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _csv(order: Order) -> str:
    return f"{','.join(order)}\n{','.join(map(_scalar, order.values()))}"


def _toml(order: Order) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in order.items())


def _yaml(order: Order) -> str:
    return "\n".join(f"{name}: {_scalar(value)}" for name, value in order.items())


WRITERS = {"json": json.dumps, "yaml": _yaml, "xml": _xml, "toml": _toml, "csv": _csv}


def _write(row: dict[str, Any], order: Order) -> str:
    return str(WRITERS[row["schema_type"]](order))


def oracle(row: dict[str, Any]) -> Reply:
    return _write(row, _order(row))


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    order = _order(row)
    plain, backwards = _write(row, order), _write(row, dict(reversed(order.items())))
    forms: list[Reply] = [backwards, f"\n\n{plain}\n\n", f"<think>Which fields?</think>{plain}"]
    if row["schema_type"] == "json":
        forms += [json.dumps(order, indent=4), json.dumps(order, separators=(",", ":")), plain.replace(": ", " : ")]
        forms.append(plain.replace(order["customer"][0], f"\\u{ord(order['customer'][0]):04x}", 1))
    elif row["schema_type"] == "yaml":
        forms += [json.dumps(order), f"---\n{plain}\n", plain.replace("\n", "  # so\n", 1)]
        forms += ["{" + plain.replace("\n", ", ") + "}", plain.replace(order["customer"], f"'{order['customer']}'")]
    elif row["schema_type"] == "xml":
        forms += [f'<?xml version="1.0"?>\n{plain}', plain.replace("><", ">\n  <"), plain.replace("true", "True")]
        forms.append(plain.replace(order["customer"], f"<![CDATA[{order['customer']}]]>"))
        name = f"<customer>{order['customer']}</customer>"
        forms.append(plain.replace(name, "").replace("<order>", f'<order customer="{order["customer"]}">'))
    elif row["schema_type"] == "toml":
        forms += [
            plain.replace('"', "'"),
            f"# an order\n{plain}",
            plain.replace(" = ", "="),
            plain.replace("\n", "\n\n"),
        ]
    else:
        forms += [plain.replace("\n", "\r\n"), plain.replace(order["customer"], f'"{order["customer"]}"'), f"{plain}\n"]
    return forms


def wrong(row: dict[str, Any]) -> list[Reply]:
    order = _order(row)
    changed = [
        {**order, "quantity": "many"},
        {**order, "quantity": 0},
        {**order, "product": "unicorns"},
        {**order, "paid": "perhaps"},
        {**order, "note": "an extra field"},
        {name: value for name, value in order.items() if name != "paid"},
    ]
    return [_write(row, one) for one in changed]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    plain, kind = _write(row, _order(row)), row["schema_type"]
    return [
        ("in a fence", f"```{kind}\n{plain}\n```"),
        ("with words before it", f"Here you are:\n{plain}"),
        ("the schema itself", row["schema_str"]),
        ("an empty object", {"xml": "<order/>", "csv": "customer,product,quantity,paid"}.get(kind, "{}")),
        ("cut off", plain[: len(plain) // 2]),
        ("only in the reasoning", f"<think>{plain}</think>"),
        ("reasoning that is not closed", f"<think>{plain}"),
        ("an entity", '<!DOCTYPE a [<!ENTITY x "y">]><order>&x;</order>'),
        ("code in YAML", "!!python/object/apply:os.getcwd []"),
        ("as a tool call", tool_call("answer", plain)),
    ]


MALFORMED = [
    ("a schema that is no JSON", lambda row: {**row, "schema_str": "{"}),
    ("a schema with an unknown keyword", lambda row: {**row, "schema_str": '{"typ": "object"}'}),
    ("a schema that points elsewhere", lambda row: {**row, "schema_str": '{"$ref": "https://example.org/s"}'}),
    ("an unknown format", lambda row: {**row, "schema_type": "ini"}),
    ("an unknown mode", lambda row: {**row, "response_mode": "both"}),
]
