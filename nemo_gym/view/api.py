"""The JSON endpoints of the viewer. The page is built against them; docs/view.md lists them."""

import csv
import io
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version as installed_version
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nemo_gym.journal import StoreError
from nemo_gym.rollouts.annotations import Annotation, InvalidAnnotation, append_annotation, read_annotations
from nemo_gym.rollouts.run_files import annotations_path_for
from nemo_gym.view.columns import cell_value
from nemo_gym.view.comparison import compare_runs, compare_several
from nemo_gym.view.conversation import event_text, event_tokens, find_in_events
from nemo_gym.view.database import RecentResults, RunDatabase, Selection
from nemo_gym.view.live_state import live_state
from nemo_gym.view.rollout_page import dataset_row, first_response_event, rollout_page
from nemo_gym.view.summary import rollout_context, run_entry, statistics_of, summarize
from nemo_gym.view.token_sequence import sequence_facts
from nemo_gym.view.tool_list import list_tools
from nemo_gym.wire.stored_rollout import RolloutId

MAX_ROWS = 500
MAX_OTHER_RUNS = 50
MAX_COMPARED = 8
KEPT_COMPARISONS = 8
MAX_ANNOTATION_BYTES = 64_000
MAX_TOKENS = 20_000
MAX_QUERY_DIGITS = 14
"""Fewer than 64 bits have, because handlers add to these numbers."""
MAX_CSV_COLUMNS = 100
DEFAULT_CSV_COLUMNS = "task,repeat,outcome,kind,reward,agent,model,turns,tokens,seconds,extracted,expected,question"
_ROLLOUT_TEXT = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class Pages:
    """The handlers of the JSON endpoints. Starlette runs them on threads, so that queries do not block the loop."""

    def __init__(self, runs: Sequence[RunDatabase], advice: Mapping[str, str], *, has_annotations: bool) -> None:
        self._runs = runs
        self._advice = advice
        self._has_annotations = has_annotations
        self._comparisons = RecentResults(KEPT_COMPARISONS)

    def runs(self, request: Request) -> Response:  # noqa: ARG002 - every route takes one
        return JsonResponse([run_entry(run, number) for number, run in enumerate(self._runs)])

    def session(self, request: Request) -> Response:  # noqa: ARG002
        paths = sorted({str(run.run.output.parent) for run in self._runs})
        facts = {"version": installed_version("nemo-gym"), "paths": paths, "bundle": False}
        facts["annotations"] = self._has_annotations
        return JsonResponse(facts)

    def run(self, request: Request) -> Response:
        return JsonResponse(summarize(self._run(request), request.path_params["run"]))

    def progress(self, request: Request) -> Response:
        run = self._run(request)
        done, size = run.progress()
        return JsonResponse({"indexed": done, "size": size, "rows": run.count(), "version": run.version()})

    def columns(self, request: Request) -> Response:
        return JsonResponse({"columns": statistics_of(self._run(request))["columns"]})

    def filter(self, request: Request) -> Response:
        return JsonResponse(self._run(request).filter_facts(request.query_params.get("where", "")))

    def compare(self, request: Request) -> Response:
        runs = self._run(request), self._run(request, "other")
        return JsonResponse(self._comparison([request.path_params["run"], request.path_params["other"]], runs))

    def compare_several(self, request: Request) -> Response:
        """Compare each run in `?runs=0,1,2` with the first one."""
        texts = request.query_params.get("runs", "").split(",")[:MAX_COMPARED]
        numbers = [_whole_number(text, len(self._runs)) for text in texts]
        if len(numbers) < 2 or len(set(numbers)) < len(numbers) or max(numbers) >= len(self._runs):
            return JsonResponse({"error": "runs must name at least two different runs, such as runs=0,1"}, 400)
        return JsonResponse(compare_several([self._runs[number] for number in numbers], numbers))

    def _comparison(self, numbers: Sequence[int], runs: tuple[RunDatabase, RunDatabase]) -> dict[str, Any]:
        """Return the comparison of two runs; the last ones are kept, because the page asks again as a run grows."""
        key = (*numbers, *(run.version() for run in runs))
        result: dict[str, Any] | None = self._comparisons.get(key)
        if result is None:
            result = compare_runs(*runs)
            for entry, number in zip(result["runs"], numbers, strict=True):
                entry["number"] = number
            self._comparisons.keep(key, result)
        return result

    def rollouts(self, request: Request) -> Response:
        """Return one page of the table of rollouts: from `start`, or around the rollout that the query names."""
        query, run, begin = request.query_params, self._run(request), time.perf_counter()
        selection, at = _selection(query), _rollout_at(query)
        count = min(_whole_number(query.get("count"), 100), MAX_ROWS)
        position = {} if at is None else {"position": run.position(at, selection)}
        is_centred = at is not None and "start" not in query
        page = run.page(**vars(selection), start=_start(request), count=count, at=at if is_centred else None)
        facts = {"total": page.total, "of": run.count(), "start": page.start, "version": run.version(), **position}
        return JsonResponse({**facts, "seconds": time.perf_counter() - begin, "rows": page.rows})

    def csv(self, request: Request) -> Response:
        """Return all rows of a selection as CSV, with the columns that the query names."""
        run, query = self._run(request), request.query_params
        by_name = {column["name"]: column for column in statistics_of(run)["columns"]}
        names = (query.get("columns") or DEFAULT_CSV_COLUMNS).split(",")[:MAX_CSV_COLUMNS]
        columns = [by_name[name] for name in names if name in by_name]
        selection = _selection(query)
        run.condition(selection.filter_text, selection.words)  # an invalid filter is a 400, not a broken file
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.run.name) + ".csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        lines = _csv_lines(run.every_row(selection), columns)
        return StreamingResponse(lines, media_type="text/csv; charset=utf-8", headers=headers)

    def tasks(self, request: Request) -> Response:
        query, run = request.query_params, self._run(request)
        count = min(_whole_number(query.get("count"), 100), MAX_ROWS)
        page = run.tasks(
            filter_text=query.get("where", ""),
            words=query.get("words", ""),
            group=query.get("group", "all"),
            sort=query.get("sort", "task"),
            down=query.get("down") == "1",
            start=_start(request),
            count=count,
        )
        groups = run.task_groups(**_filter(query))
        return JsonResponse({"total": page.total, "start": page.start, "groups": groups, "rows": page.rows})

    def rollout(self, request: Request) -> Response:
        """Return the content of a rollout's page, and its position and neighbours in the selection."""
        run, rollout_id, record = self._run(request), _rollout_id(request), self._record(request)
        query, selection = request.query_params, _selection(request.query_params)
        window = (_start(request), min(_whole_number(query.get("count"), 200), MAX_ROWS))
        attempts = run.attempts(rollout_id)
        matches = run.count(filter_text=selection.filter_text, words=selection.words)
        return JsonResponse(
            {
                **rollout_page(run, record, run.row(rollout_id), self._entry(request), self._advice, window),
                "attempt": _whole_number(query.get("attempt"), 0),
                "attempts": len(attempts),
                "attempt_list": attempts,
                **run.neighbours(rollout_id, **vars(selection)),
                "position": run.position(rollout_id, selection),
                "matches": matches,
                "next_failed": run.neighbours(rollout_id, filter_text='outcome == "failed"')["next"],
            }
        )

    def live(self, request: Request) -> Response:
        others = [run_entry(run, number) for number, run in enumerate(self._runs[:MAX_OTHER_RUNS])]
        return JsonResponse(live_state(self._run(request), self._entry(request), others))

    def annotations(self, request: Request) -> Response:
        """Return the annotations of a run."""
        run = self._run(request)
        annotations = [asdict(one) for one in read_annotations(run.run.output).values()]
        path = str(annotations_path_for(run.run.output))
        command = shlex.join(["gym", "runs", "annotations", str(run.run.output)])
        facts = {"enabled": self._has_annotations, "path": path, "run": str(run.run.output), "command": command}
        return JsonResponse({**facts, "annotations": annotations})

    async def annotate(self, request: Request) -> Response:
        """Store the annotation of a rollout; `AccessCheck` has checked that the page sent it."""
        run = self._run(request)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_ANNOTATION_BYTES:
                return JsonResponse({"error": "the annotation is too large"}, 413)
        try:
            annotation = Annotation.parse(orjson.loads(body), now=True)
        except orjson.JSONDecodeError:
            return JsonResponse({"error": "the body is not JSON"}, 400)
        except InvalidAnnotation as error:
            return JsonResponse({"error": str(error)}, 400)
        if not run.locations(annotation.rollout_id):
            return JsonResponse({"error": "unknown rollout"}, 404)
        try:
            await run_in_threadpool(append_annotation, run.run.output, annotation)
        except StoreError as error:
            return JsonResponse({"error": str(error)}, 409)
        await run_in_threadpool(run.follow_annotations)
        return JsonResponse(asdict(annotation))

    def tools(self, request: Request) -> Response:
        return JsonResponse({"tools": list_tools(self._record(request))})

    def sequence(self, request: Request) -> Response:
        record = self._record(request)
        count = min(_whole_number(request.query_params.get("count"), 2000), MAX_TOKENS)
        return JsonResponse(sequence_facts(record, first_response_event(record), _start(request), count))

    def row(self, request: Request) -> Response:
        return JsonResponse(dataset_row(self._run(request), self._record(request)))

    def text(self, request: Request) -> Response:
        event = request.path_params["event"]
        return JsonResponse({"text": event_text(self._record(request), event, _start(request))})

    def find(self, request: Request) -> Response:
        """Return the numbers of the events of the whole conversation that contain a text."""
        return JsonResponse({"events": find_in_events(self._record(request), request.query_params.get("text", ""))})

    def tokens(self, request: Request) -> Response:
        return JsonResponse(event_tokens(self._record(request), request.path_params["event"], _start(request)))

    def raw(self, request: Request) -> Response:
        return JsonResponse(self._record(request))

    def _entry(self, request: Request) -> dict[str, Any]:
        """Return the entry of the run that the path names, with its limits and the command to resume it."""
        run = self._run(request)
        return rollout_context(run, request.path_params["run"])

    def _run(self, request: Request, parameter: str = "run") -> RunDatabase:
        """Return the run that a parameter of the path names; respond with 404 if it is unknown."""
        number: int = request.path_params[parameter]
        if number >= len(self._runs):
            raise HTTPException(404, "unknown run")
        return self._runs[number]

    def _record(self, request: Request) -> dict[str, Any]:
        """Return the requested record; respond with 404 if it is unknown."""
        attempt = _whole_number(request.query_params.get("attempt"), 0)
        record = self._run(request).record(_rollout_id(request), attempt)
        if record is None:
            raise HTTPException(404, "unknown rollout")
        return record


def _csv_lines(rows: Iterator[dict[str, Any]], columns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a CSV file. Text that a spreadsheet would run as a formula gets a leading apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([column["name"] for column in columns])
    for row in rows:
        values = (cell_value(row, column) for column in columns)
        writer.writerow([f"'{v}" if isinstance(v, str) and v.startswith(_FORMULA_STARTS) else v for v in values])
        if buffer.tell() > 1 << 16:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _rollout_id(request: Request) -> RolloutId:
    return request.path_params["task"], request.path_params["repeat"]


def _start(request: Request) -> int:
    return _whole_number(request.query_params.get("start"), 0)


def _filter(query: QueryParams) -> dict[str, Any]:
    return {"filter_text": query.get("where", ""), "words": query.get("words", "")}


def _whole_number(text: str | None, default: int) -> int:
    """Return a number of the query, or the default if it is no whole number; respond with 400 if it is too large."""
    if text is None or not text.isascii() or not text.isdecimal():
        return default
    significant = text.lstrip("0") or "0"
    if len(significant) > MAX_QUERY_DIGITS:
        raise HTTPException(400, "a number in the query is too large")
    return int(significant)


def _selection(query: QueryParams) -> Selection:
    """Return the rows and the order that a query asks for."""
    return Selection(**_filter(query), sort=query.get("sort", "task"), down=query.get("down") == "1")


def _rollout_at(query: QueryParams) -> RolloutId | None:
    """Return the rollout of the parameter `at`, such as 412:3; None without one."""
    match = _ROLLOUT_TEXT.fullmatch(query.get("at", ""))
    return (int(match[1]), int(match[2])) if match else None
