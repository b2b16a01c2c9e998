"""What a model reads of a gymnasium environment: its task, its actions, its observations."""

import re
from typing import Any

TASKS = {
    "FrozenLake": "Cross a frozen lake (F) from the start (S) to the goal (G) without falling into a hole (H). "
    "The ice may be slippery: you may move in another direction than you chose.",
    "Taxi": "Drive a taxi in a grid: pick up the passenger at one of the places R, G, Y, B, and drop the passenger at "
    "the destination. Every step costs 1, a wrong pickup or dropoff 10; delivery earns 20.",
    "CliffWalking": "Walk through a grid of 4 rows and 12 columns from the lower left corner to the lower right one. "
    "Between them is a cliff: who steps on it loses 100 and is back at the start. Every step costs 1.",
    "Blackjack": "Play a hand of Blackjack: come closer to 21 than the dealer without exceeding it.",
    "CartPole": "Keep a pole upright that stands on a cart, by pushing the cart left or right. Every step earns 1; the "
    "episode ends when the pole leans by more than 12 degrees or the cart is more than 2.4 away from the centre.",
    "MountainCar": "Drive a weak car out of a valley to the flag at position 0.5 by swinging back and forth. "
    "Every step costs 1.",
    "Acrobot": "Swing the end of a double pendulum above the line one length over its axis. Every step costs 1.",
}
ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("push left", "push right"),
    "MountainCar": ("accelerate left", "do nothing", "accelerate right"),
    "Acrobot": ("torque -1", "no torque", "torque +1"),
}
FIELDS = {
    "Blackjack": ("your sum", "the dealer's card", "usable ace"),
    "CartPole": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "MountainCar": ("position", "velocity"),
    "Acrobot": ("cos 1", "sin 1", "cos 2", "sin 2", "angular velocity 1", "angular velocity 2"),
}
_ALIASES = {"FrozenLake8x8": "FrozenLake", "CliffWalkingSlippery": "CliffWalking"}
PLACES = ("R", "G", "Y", "B", "in the taxi")
MAX_NUMBERS = 256
"""Largest observation that is shown as text."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CURSOR = re.compile(r"\x1b\[4[0-9]m(.)\x1b\[0m")


def base_name(name: str) -> str:
    """Return the name of an environment without module, namespace and version."""
    base = re.split(r"[:/]", name)[-1].rpartition("-v")[0] or name
    return _ALIASES.get(base, base)


def action_help(env: Any, name: str) -> str:
    """Return the task, the actions, and how to answer."""
    base = base_name(name)
    task = TASKS.get(base) or f"This is the environment {base}. Earn as much reward as you can."
    words, space = ACTIONS.get(base), env.action_space
    if words:
        listed = ", ".join(f"[{number}] {word}" for number, word in enumerate(words))
    elif space.shape == ():
        start = int(getattr(space, "start", 0))
        listed = f"the numbers from [{start}] to [{start + int(space.n) - 1}]"
    else:
        listed = f"{space.shape[0]} numbers, such as {space.sample().tolist()}, of {space}"
    return f"{task}\nActions: {listed}. Answer with one of them in brackets."


def observation_text(env: Any, observation: Any) -> str:
    """Return an observation as text: what the environment draws, or its numbers with their names."""
    base = base_name(env.spec.id)
    drawing = draw(env)
    if base == "Taxi":
        row, column, passenger, destination = env.unwrapped.decode(int(observation))
        return (
            f"{drawing}\nThe taxi is in row {row}, column {column}. Passenger: {PLACES[passenger]}. "
            f"Destination: {PLACES[destination]}."
        )
    if base in ("FrozenLake", "CliffWalking"):
        columns = 12 if base == "CliffWalking" else env.unwrapped.ncol
        row, column = divmod(int(observation), columns)
        return f"{drawing}\nYou are in row {row}, column {column}."
    names = FIELDS.get(base)
    values = _flat_values(observation)
    if names and len(names) == len(values):
        text = ", ".join(f"{field} {value}" for field, value in zip(names, values, strict=True))
        return f"{drawing}\n{text}".strip()
    return f"{drawing}\nObservation: {', '.join(values)}".strip()


def draw(env: Any) -> str:
    """Return the drawing of the environment without colours, its marked place in brackets; empty without one."""
    if env.render_mode != "ansi":
        return ""
    return _COLOURS.sub("", _CURSOR.sub(r"[\1]", env.render())).strip("\n")


def _flat_values(observation: Any) -> list[str]:
    """Return the numbers and texts of an observation."""
    if isinstance(observation, dict):
        return [f"{key} {' '.join(_flat_values(value))}" for key, value in observation.items()]
    if isinstance(observation, list | tuple):
        return [text for value in observation for text in _flat_values(value)]
    if hasattr(observation, "tolist"):
        value = observation.tolist()
        return _flat_values(value) if isinstance(value, list) else _flat_values([value])
    return [f"{observation:.4g}" if isinstance(observation, float) else str(observation)]
