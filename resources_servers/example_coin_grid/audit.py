"""Right, odd, wrong and cheating replies for `gym env audit example_coin_grid`."""

from typing import Any

from nemo_gym.authoring.model_replies import Reply, message, tool_call
from nemo_gym.authoring.model_replies import play_calls as act  # noqa: F401 - part of the interface
from resources_servers.example_coin_grid.app import Walk, coin_places

Move = tuple[str, int]


def _moves(row: dict[str, Any], *, down_first: bool = False, from_the_end: bool = False) -> list[Move]:
    """Return moves that visit the coins in order."""
    coins = sorted(coin_places(row["seed"], row["coins"]), reverse=from_the_end)
    column, line = 0, 0
    moves: list[Move] = []
    for coin in coins:
        across: list[Move] = [("right" if coin[0] > column else "left", abs(coin[0] - column))]
        down: list[Move] = [("down" if coin[1] > line else "up", abs(coin[1] - line))]
        moves += [move for move in (down + across if down_first else across + down) if move[1]]
        column, line = coin
    return moves


def _collects_all(row: dict[str, Any], moves: list[Move]) -> bool:
    walk = Walk(coin_places(row["seed"], row["coins"]))
    for direction, steps in moves:
        walk.move(direction, steps)
    return not walk.coins


def _calls(moves: list[Move]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for number, (direction, steps) in enumerate(moves):
        arguments = {"direction": direction, "steps": steps}
        items += tool_call("move", arguments, "You are somewhere.", call_id=f"call_{number}")
    return items


def oracle(row: dict[str, Any]) -> Reply:
    return [*_calls(_moves(row)), message("I have all the coins.")]


def odd_forms(row: dict[str, Any]) -> list[Reply]:
    moves = _moves(row)
    return [
        [*tool_call("look", {}, "\n".join(Walk(coin_places(row["seed"], row["coins"])).map_rows())), *_calls(moves)],
        _calls(moves),
        _calls(_moves(row, down_first=True)),
        _calls(_moves(row, from_the_end=True)),
        [*_calls([("up", 1)]), *_calls(moves)],  # against the wall
        [*tool_call("move", {"direction": "north"}, "error"), *_calls(moves)],
    ]


def wrong(row: dict[str, Any]) -> list[Reply]:
    moves = _moves(row)
    while _collects_all(row, moves):  # a way to one coin may lead over another
        moves.pop()
    return [[*_calls(moves), message("I have all the coins.")]]


def cheats(row: dict[str, Any]) -> list[tuple[str, Reply]]:
    calls = _calls(_moves(row))
    return [
        ("only looked", [*tool_call("look", {}, "ooo"), message("I have all the coins.")]),
        ("another tool", [{**item, "name": "teleport"} if "name" in item else item for item in calls]),
        (
            "a reward as an argument",
            [{**item, "arguments": '{"direction": "up", "reward": 1}'} if "name" in item else item for item in calls],
        ),
        ("a negative step", tool_call("move", {"direction": "right", "steps": -4}, "You have 3 coins.")),
    ]


MALFORMED = [
    ("a seed in words", lambda row: {**row, "seed": "lucky"}),
    ("no coins", lambda row: {**row, "coins": 0}),
]
