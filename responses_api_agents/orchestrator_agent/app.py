"""Orchestrator agent: a model that hands tasks to sub-agents, which are tools of it.

A sub-agent has instructions, its own conversation and the tools of the environment, in the session of the rollout. Its
last message is the output of the tool. Every run of a sub-agent is recorded with its conversation and its tokens.
"""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.authoring.episode_agent import (
    EpisodeSession,
    EpisodeVerifyRequest,
    EpisodeVerifyResponse,
    has_invocation,
    prompt_items,
    record_invocation,
    text_message,
)
from nemo_gym.authoring.tool_agent import ROOT, ToolAgent, ToolAgentConfig, unknown_tool
from nemo_gym.config_types import ModelServerRef
from nemo_gym.errors import AgentFailed
from nemo_gym.grading.extraction import assistant_texts
from nemo_gym.keys import NG_TOKEN_TRACES_KEY
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from nemo_gym.wire.base import TOKEN_FIELDS, replace_fields
from nemo_gym.wire.episode import Content

TASK_PARAMETERS = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "The task, with everything needed to do it."}},
    "required": ["task"],
    "additionalProperties": False,
}


class SubAgent(BaseModel):
    """A sub-agent: a tool of the orchestrator with one argument, `task`."""

    model_config = ConfigDict(extra="forbid")

    description: str
    """The description of the tool."""
    instructions: str = "Do the task of the user. Your last message is the result."
    """The system message of the sub-agent."""
    tools: list[str] | None = None
    """Names of its tools; by default all of the environment."""
    model_server: ModelServerRef | None = None
    """Its model; by default that of the orchestrator."""
    max_steps: int = Field(default=20, ge=1)
    """Model turns of one run."""


class OrchestratorAgentConfig(ToolAgentConfig):
    sub_agents: dict[str, SubAgent] = Field(min_length=1)
    """Sub-agents by the names of their tools."""
    own_tools: bool = True
    """The orchestrator has the tools of the environment, too."""
    max_sub_agent_runs: int = Field(default=16, ge=1)
    """Runs of sub-agents per episode; the model gets an error instead of a further one."""


@dataclass
class SubAgentRuns:
    """The sub-agents of one rollout."""

    params: NeMoGymResponseCreateParamsNonStreaming
    model_path: str
    count: int = 0
    token_traces: list[dict[str, Any]] = field(default_factory=list)


class OrchestratorAgent(ToolAgent):
    HOSTING = "cell"

    config: OrchestratorAgentConfig

    async def episode(
        self, params: NeMoGymResponseCreateParamsNonStreaming, model_path: str, session: EpisodeSession
    ) -> NeMoGymResponse:
        """Run the episode of the orchestrator, with a tool for each sub-agent.

        Raises:
            AgentFailed: a tool of the environment has the name of a sub-agent.
        """
        tools = [tool if isinstance(tool, dict) else tool.model_dump(exclude_unset=True) for tool in params.tools or ()]
        clash = self.config.sub_agents.keys() & {tool.get("name") for tool in tools}
        if clash:
            problem = f"{', '.join(sorted(clash))} is a tool of the environment and a sub-agent"
            raise AgentFailed(problem, where=self.config.name, fix="rename it in sub_agents")
        session.state, session.invocation_id = SubAgentRuns(params, model_path), ROOT
        delegates = [sub_agent_tool(name, agent) for name, agent in self.config.sub_agents.items()]
        offered = [*(tools if self.config.own_tools else []), *delegates]
        response = await super().episode(replace_fields(params, tools=offered), model_path, session)
        if not has_invocation(session, ROOT):  # compaction has recorded it
            items = [*prompt_items(params.input), *response.output]
            record_invocation(session, ROOT, items, status="incomplete" if session.limit else "completed")
        usage = type(response.usage).sum_from_list(session.spent) if response.usage else None
        return replace_fields(response, usage=usage)

    async def call_tool(
        self, call: NeMoGymResponseFunctionToolCall, arguments: dict[str, Any], session: EpisodeSession
    ) -> Content:
        """Run a sub-agent, or call a tool of the environment."""
        if not isinstance(session.state, SubAgentRuns) or call.name not in self.config.sub_agents:
            if session.tool_names and call.name not in session.tool_names:  # one that this agent has not
                return unknown_tool(call.name, session.tool_names)
            return await super().call_tool(call, arguments, session)
        task, runs = arguments.get("task"), session.state
        if not isinstance(task, str) or not task.strip():
            return '{"error": "task must be a text."}'
        if runs.count == self.config.max_sub_agent_runs:
            return '{"error": "No more sub-agents can be run. Finish without them."}'
        runs.count += 1
        return await self._run_sub_agent(f"{call.name}-{runs.count}", call, task, session)

    async def _run_sub_agent(
        self, name: str, call: NeMoGymResponseFunctionToolCall, task: str, session: EpisodeSession
    ) -> str:
        """Run one episode of a sub-agent in the session of the rollout and return its last message."""
        agent, runs = self.config.sub_agents[call.name], session.state
        own = EpisodeSession(
            session.cookies,  # the same object: the environment has one session
            opened=session.opened,
            spent=session.spent,
            invocation_id=name,
            external=session.external,
            max_steps=agent.max_steps,
            observations=session.observations,
            model_server=agent.model_server.name if agent.model_server else None,
        )
        tools = [tool for tool in runs.params.tools or () if agent.tools is None or tool_name(tool) in agent.tools]
        messages = [text_message("system", agent.instructions)]
        messages.append(text_message("user", task))
        params = replace_fields(runs.params, input=messages, tools=tools, instructions=None)
        response = await super().episode(params, runs.model_path, own)
        status = "incomplete" if own.limit or response.incomplete_details else "completed"
        if not has_invocation(session, name):
            record_invocation(session, name, [*messages, *response.output], call_id=call.call_id, status=status)
        first = next(each for each in session.observations if getattr(each, "invocation_id", None) == name)
        first.parent_invocation_id = session.invocation_id or ROOT  # type: ignore[union-attr]
        first.spawned_by_tool_call_id = call.call_id  # type: ignore[union-attr]  # compaction does not know it
        add_token_trace(runs, name, response)
        self._merge(own, session)
        texts = assistant_texts(response)
        ending = f"[{name} reached the limit: {own.limit}]" if own.limit else f"[{name} ended without a message]"
        return texts[-1] if texts and texts[-1].strip() and not own.limit else ending

    def _merge(self, own: EpisodeSession, session: EpisodeSession) -> None:
        """Add what a sub-agent did in the environment to the episode."""
        session.done = session.done or own.done
        session.tool_errors += own.tool_errors
        if own.limit == "tokens":  # of the whole rollout
            session.limit = own.limit
        if own.has_step_rewards:
            session.add_reward(sum(own.step_rewards))

    async def verify_with_turns(self, body: EpisodeVerifyRequest, session: EpisodeSession) -> EpisodeVerifyResponse:
        """Verify the episode, and add the tokens of the sub-agents to the record."""
        result = await super().verify_with_turns(body, session)
        traces = session.state.token_traces if isinstance(session.state, SubAgentRuns) else []
        return result.model_copy(update={NG_TOKEN_TRACES_KEY: traces}) if traces else result


def sub_agent_tool(name: str, agent: SubAgent) -> dict[str, Any]:
    """Return the tool that runs a sub-agent."""
    function = {"type": "function", "name": name, "description": agent.description, "strict": True}
    return {**function, "parameters": TASK_PARAMETERS}


def tool_name(tool: Any) -> str | None:
    return tool.get("name") if isinstance(tool, dict) else getattr(tool, "name", None)


def add_token_trace(runs: SubAgentRuns, name: str, response: NeMoGymResponse) -> None:
    """Add the token ids of a sub-agent's turns, if the model server reports them, as a separate trace."""
    calls = [
        {each: getattr(item, each) for each in TOKEN_FIELDS if getattr(item, each, None) is not None}
        for item in response.output
    ]
    calls = [call for call in calls if call]
    if calls:
        runs.token_traces.append({"trace": name, "calls": calls})


if __name__ == "__main__":
    OrchestratorAgent.run_webserver()
