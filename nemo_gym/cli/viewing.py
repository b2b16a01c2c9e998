"""What `gym view` does once it knows what to look at."""

import asyncio
import secrets
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from nemo_gym.cli import output
from nemo_gym.launch.ports import listen
from nemo_gym.view import text
from nemo_gym.view.export import export
from nemo_gym.view.index import RunIndex
from nemo_gym.view.runs import RunFiles
from nemo_gym.view.server import LOOPBACK, view_app
from nemo_gym.view.summary import summary


def built(runs: Sequence[RunFiles]) -> list[RunIndex]:
    """The indexes of the runs, complete; says how far it is when that takes a while."""
    indexes = [RunIndex(run) for run in runs]
    for index in indexes:
        while index.grow():
            done, size = index.progress()
            output.passing(f"reading {index.run.name}: {done * 100 // max(size, 1)} %")
        output.passing("")
    return indexes


def serve(runs: Sequence[RunFiles], *, host: str, port: int, browser: bool) -> int:
    """Show the page until interrupted."""
    indexes = [RunIndex(run) for run in runs]
    at_home = host in LOOPBACK
    token = None if at_home else secrets.token_urlsafe(24)
    with listen("gym view", host, port) as listener:
        address = f"http://{host}:{listener.getsockname()[1]}/"
        app = view_app(indexes, token=token, hosts=LOOPBACK if at_home else LOOPBACK | {host})
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        output.data(address + (f"?token={token}" if token else ""))
        output.talk("Ctrl-C ends it")
        if browser:
            webbrowser.open(address + (f"?token={token}" if token else ""))
        asyncio.run(server.serve(sockets=[listener]))
    return 0


def write_bundle(runs: Sequence[RunFiles], folder: str, where: str) -> int:
    def told(done: int, total: int) -> None:
        output.passing(f"{done}/{total}" if done < total else "")

    count = export(built(runs), Path(folder), where=where, told=told)
    output.data(f"{count} rollouts in {Path(folder) / 'index.html'}")
    return 0


def print_table(runs: Sequence[RunFiles], where: str, words: str, limit: int, *, as_json: bool) -> int:
    indexes = built(runs)
    if as_json:
        output.json(
            [
                {**summary(index), "rollouts": index.page(where=where, words=words, count=limit).rows}
                for index in indexes
            ]
        )
        return 0
    for index in indexes:
        for line in text.overview(index):
            output.data(line)
        output.data("")
        output.table(list(text.rows(index, where=where, words=words, count=limit)))
    return 0


def print_rollout(runs: Sequence[RunFiles], task: int, repeat: str | None, *, as_json: bool) -> int:
    """One rollout, or every repeat of a task."""
    found = False
    for index in built(runs):
        known = [row["rollout"] for row in index.page(where=f"task == {task}", count=1000).rows]
        for number in known if repeat is None else [int(repeat)]:
            if as_json:
                record = index.record((task, number))
                if record is not None:
                    found = True
                    output.json(record)
                continue
            lines = text.rollout(index, (task, number))
            if lines is not None:
                found = True
                for line in lines:
                    output.data(line)
    if not found:
        output.error(f"there is no rollout {task}{':' + repeat if repeat else ''} in these files")
        return 1
    return 0
