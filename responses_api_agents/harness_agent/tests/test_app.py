"""Rollouts of a small program in real boxes, with a scripted model and the environment `coding_task`."""

import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.errors import AgentFailed, ConfigError, ModelFailed
from nemo_gym.sandbox.providers.local import probe
from responses_api_agents.harness_agent.harness import Harness
from responses_api_agents.harness_agent.tests.bench import TASK, harness_agent, run_task, stub_harness

pytestmark = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")

FAILING_MODEL = {"script": [{"text": "never sent", "fault": {"kind": "status", "status": 400}}]}


def commands_of_processes() -> str:
    """Return the command lines of all processes of this machine."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(lines)


def wait_for_process(mark: str) -> None:
    """Wait until a process has `mark` in its command line."""
    deadline = time.monotonic() + 60
    while mark not in commands_of_processes():
        assert time.monotonic() < deadline, "the program did not start"
        time.sleep(0.05)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files during a test, whose path is longer than that of a socket may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def test_a_program_solves_the_task_and_every_call_is_in_the_conversation() -> None:
    """The result must show what the model wrote and what the tools answered, as trainers read it."""
    async with harness_agent(stub_harness()) as agent:
        result = await run_task(agent)

    assert result["reward"] == 1.0
    kinds = [item["type"] for item in result["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 3 + ["message"]
    assert list(result["workspace_changes"]["files"]) == ["plan/spans.py"]
    assert "+            merged[-1][1] = max(merged[-1][1], end)" in result["workspace_changes"]["diff"]
    assert (result["harness"]["model_calls"], result["harness"]["answered_model_calls"]) == (4, 4)


async def test_the_exit_status_of_the_program_decides_nothing() -> None:
    """Programs exit with 0 after failures and with 1 after successes; only the workspace counts."""
    async with harness_agent(stub_harness("exit 3")) as agent:
        result = await run_task(agent)

    assert (result["reward"], result["harness"]["exit_status"]) == (1.0, 3)


async def test_the_last_words_of_a_program_decide_nothing() -> None:
    """A program that solved the task and then complains about its network has solved it."""
    async with harness_agent(stub_harness("last words")) as agent:
        result = await run_task(agent)

    assert (result["reward"], result["harness"]["exit_status"]) == (1.0, 1)


async def test_links_pipes_and_closed_folders_in_the_workspace_do_not_fail_the_rollout() -> None:
    """Programs create virtual environments, which are links; and no program may evade its reward with such a file."""
    pipe = {"file": "{home}/pipe"}
    async with harness_agent(stub_harness("odd files", final_text=pipe)) as agent:
        result = await asyncio.wait_for(run_task(agent), 50)

    assert result["reward"] == 1.0
    assert sorted(result["workspace_changes"]["files"]) == ["caf\\xe9", "hidden/file", "plan/spans.py"]


async def test_a_program_that_removes_its_workspace_has_deleted_the_files() -> None:
    """The reward of a destroyed repository is 0, whatever is in its place; a failure would not be trained on."""
    async with harness_agent(stub_harness("remove")) as agent:
        result = await run_task(agent)

    assert result["reward"] == 0.0
    assert set(result["workspace_changes"]["deleted"]) >= {"plan/spans.py", "plan/__init__.py"}
    assert result["workspace_changes"]["files"] == {}


async def test_a_workspace_that_is_too_large_is_a_failure_of_the_agent() -> None:
    """The files of a program must not fill the memory of the agent server."""
    async with harness_agent(stub_harness("large"), max_workspace_bytes=1 << 19) as agent:
        with pytest.raises(AgentFailed, match=r"files that the program left cannot be read.*more than 524,288 bytes"):
            await run_task(agent)


@pytest.mark.parametrize(
    ("prompt", "problem"), [("x" * (1 << 17), "has 131,072 bytes"), ("zero \0 byte", "contains a zero byte")]
)
async def test_a_task_that_is_no_argument_is_refused_with_the_alternatives(prompt: str, problem: str) -> None:
    """The kernel's own words, `Argument list too long`, say nothing about the description of the program."""
    task = {**TASK, "responses_create_params": {"input": prompt}}
    async with harness_agent(stub_harness()) as agent:
        with pytest.raises(AgentFailed, match=problem) as failure:
            await run_task(agent, task)
    assert failure.value.fix is not None
    assert "{prompt_file}" in failure.value.fix


async def test_half_a_character_in_the_task_is_replaced() -> None:
    """JSON may contain surrogates, which no file and no argument can."""
    async with harness_agent(stub_harness()) as agent:
        result = await run_task(agent, {**TASK, "responses_create_params": {"input": "half \ud83d"}})
    assert result["harness"]["answered_model_calls"] > 0


async def test_rollouts_that_wait_for_a_slot_have_no_box() -> None:
    """The life of a box is limited, so that it must not begin before the rollout may start its program."""
    async with harness_agent(stub_harness(), max_concurrent=1) as agent:
        rollouts = asyncio.gather(*(run_task(agent) for _ in range(3)))
        boxes = 0
        while not rollouts.done():
            boxes = max(boxes, len(agent._local_provider()._sandboxes))
            await asyncio.wait({rollouts}, timeout=0.01)

    assert boxes == 1
    assert [result["reward"] for result in await rollouts] == [1.0, 1.0, 1.0]


async def test_a_title_call_is_not_the_conversation() -> None:
    """Programs make calls beside the task; the main conversation is the one that does it."""
    async with harness_agent(stub_harness("title first")) as agent:
        result = await run_task(agent)

    assert len(result["response"]["output"]) == 7
    assert [trace["text"] for trace in result["harness"]["other_traces"]] == ["A title"]


async def test_a_program_that_calls_no_model_is_a_failure() -> None:
    """Reward 0 for a program that never started would train on a broken installation."""
    async with harness_agent(stub_harness("no calls")) as agent:
        with pytest.raises(AgentFailed, match=r"called no model.*there is no model"):
            await run_task(agent)


async def test_a_program_whose_calls_all_fail_is_a_failure_of_the_model() -> None:
    """The failure must name the model's error, because the program often hides it."""
    async with harness_agent(stub_harness(), model=FAILING_MODEL) as agent:
        with pytest.raises(ModelFailed, match=r"no model call of the program succeeded.*status 400"):
            await run_task(agent)


async def test_calls_after_max_steps_are_refused_and_the_rollout_is_limited() -> None:
    """A program without a turn limit must not call the model without an end."""
    async with harness_agent(stub_harness(), max_steps=2) as agent:
        result = await run_task(agent)

    assert result["_ng_failure_class"] == "limit"
    assert result["_ng_failure"] == {"which": "steps"}
    assert result["harness"]["answered_model_calls"] == 2


async def test_a_timeout_ends_the_program_and_all_its_processes(scratch: Path) -> None:
    """Tools that ignore SIGTERM must not outlive the rollout; the limit is recorded, not a reward."""
    mark = f"mark-{secrets.token_hex(8)}"
    harness = stub_harness("hang", env={"OPENAI_BASE_URL": "{base}", "MARK": mark})
    async with harness_agent(harness, timeout_s=5.0) as agent:
        result = await run_task(agent)
        left = commands_of_processes()

    assert result["_ng_failure"] == {"which": "time"}
    assert mark not in left
    assert os.listdir(scratch) == []


async def test_a_cancelled_rollout_leaves_no_process_and_no_folder(scratch: Path) -> None:
    """SIGTERM cancels rollouts; what a program has started must be gone when the agent has ended."""
    mark = f"mark-{secrets.token_hex(8)}"
    harness = stub_harness("hang", env={"OPENAI_BASE_URL": "{base}", "MARK": mark})
    async with harness_agent(harness) as agent:
        rollout = asyncio.create_task(run_task(agent))
        await asyncio.to_thread(wait_for_process, mark)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        left = await asyncio.to_thread(commands_of_processes)

    assert mark not in left
    assert os.listdir(scratch) == []


async def test_too_much_output_fails_the_rollout() -> None:
    """A program in a loop must not fill the memory of the agent server."""
    async with harness_agent(stub_harness("loud"), max_output_bytes=100_000) as agent:
        with pytest.raises(AgentFailed, match=r"ended by the sandbox \(output\)"):
            await run_task(agent)


async def test_the_box_has_no_network_but_the_gateway_and_no_root() -> None:
    """A program must not reach other servers, other rollouts or the internet."""
    port_of_test = asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with await port_of_test as server:
        port = server.sockets[0].getsockname()[1]
        checks = f"""
import os, json, socket, urllib.request, urllib.error
root = os.environ["ROOT"]
def status(path):
    try:
        return urllib.request.urlopen(urllib.request.Request(root + path, b"{{}}")).status
    except urllib.error.HTTPError as error:
        return error.code
def reaches(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return True
    except OSError:
        return False
facts = {{"uid": os.getuid(), "close": status("/rollout-budget/close")}}
facts |= {{"up": status("/v1/../ng-rollout/9-9/v1/responses")}}
facts |= {{"server": reaches("127.0.0.1", {port}), "world": reaches("1.1.1.1", 80), "home": os.environ["HOME"]}}
facts |= {{"environment": sorted(os.environ), "ok": status("/v1/chat/completions")}}
print(json.dumps({{"result": {{"text": json.dumps(facts)}}}}))
"""
        harness = stub_harness(
            command=["python3", "{home}/checks.py", "{prompt}"], files={"checks.py": checks}, env={"ROOT": "{root}"}
        )
        async with harness_agent(harness) as agent:
            with pytest.raises(ModelFailed, match="422") as failure:
                await run_task(agent)

    facts = str(failure.value)
    for text in ('"uid": 1000', '"close": 404', '"up": 404', '"server": false', '"world": false', "/work/home"):
        assert text.replace('"', '\\\\"') in facts or text in facts, (text, facts)
    assert "NEMO_GYM" not in facts


async def test_the_workspace_comes_from_files_and_set_up_and_is_checked() -> None:
    """Rows bring their repository; a check command reports on it without deciding the reward."""
    workspace = {**TASK["workspace"], "setup": "echo hello > made.txt", "check": "cat made.txt; exit 4"}
    async with harness_agent(stub_harness()) as agent:
        result = await run_task(agent, {**TASK, "workspace": workspace})

    assert result["harness"]["check"] == {"status": 4, "error_type": None, "output": "hello\n"}
    assert "made.txt" not in result["workspace_changes"]["files"]
    assert result["reward"] == 1.0


async def test_a_set_up_that_fails_is_a_failure_with_its_output() -> None:
    """A broken row must be named, not scored."""
    workspace = {**TASK["workspace"], "setup": "echo no compiler >&2; exit 7"}
    async with harness_agent(stub_harness()) as agent:
        with pytest.raises(AgentFailed, match=r"cannot be prepared \(status 7\): 'no compiler'"):
            await run_task(agent, {**TASK, "workspace": workspace})


async def test_a_git_bundle_is_cloned_at_its_revision(tmp_path: Path) -> None:
    """Datasets of repositories are bundles, of which a task uses one commit."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    repository = TASK["workspace"]["files"]
    for name, content in repository.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "start"]):
        await _run(*git, *words)
    (tmp_path / "plan" / "spans.py").write_text("broken")
    for words in (["commit", "-qam", "two"], ["bundle", "create", "-q", str(tmp_path / "r.bundle"), "--all"]):
        await _run(*git, *words)
    workspace = {"git_bundle": "r.bundle", "revision": "start", "check": "python3 -m unittest test_merge"}

    async with harness_agent(stub_harness(), workspace_folder=str(tmp_path)) as agent:
        body = {**TASK, "workspace": workspace}
        agent.config.skip_verification = True
        result = await run_task_without_seed(agent, body)

    assert list(result.changes.files) == ["plan/spans.py"]
    assert result.check["status"] == 0


async def run_task_without_seed(agent: Any, task: dict[str, Any]) -> Any:
    """Run the program on a workspace that `coding_task` would refuse."""
    from responses_api_agents.harness_agent.app import HarnessRunRequest

    body = HarnessRunRequest.model_validate(task)
    return await agent._run_program(body.responses_create_params, body.workspace, None)


async def _run(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0, words


@pytest.mark.parametrize(
    ("offers_mcp", "problem"), [(False, "expose_tools_over_mcp"), (True, "its description has no `mcp`")]
)
async def test_a_program_that_cannot_call_the_tools_of_the_environment_fails(offers_mcp: bool, problem: str) -> None:
    """A task that needs tools would be scored 0 for a program that was never able to call them."""
    async with harness_agent(stub_harness()) as agent:
        with pytest.raises(AgentFailed, match=problem):
            agent._require_tools(offers_mcp=offers_mcp)


async def test_a_program_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """The first start of a catalogue entry must say what is missing."""
    programs = {"npm": {"no-such-agent": "1.0.0"}}
    with pytest.raises(ConfigError, match=r"not installed: no-such-agent@1\.0\.0") as error:
        async with harness_agent(stub_harness(), programs=programs):
            pass
    assert error.value.fix is not None
    assert "gym env prefetch" in error.value.fix


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"command": ["agent", "{base}"]}, "the task reaches the program nowhere"),
        ({"command": ["agent", "{prompt}"], "env": {}, "files": {}}, "the address of the model"),
        ({"files": {"../x": ""}}, "not a path below"),
        ({"final_text": {"stdout": "json"}}, "`field` is needed"),
        ({"final_text": {"stdout": "text", "file": "x"}}, "not both"),
        ({"commands": []}, "Extra inputs"),
    ],
)
def test_a_wrong_description_of_a_program_is_refused_with_its_reason(fields: dict[str, Any], problem: str) -> None:
    """Users write these descriptions by hand."""
    with pytest.raises(ValidationError, match=problem):
        Harness.model_validate(stub_harness(**fields))
