"""Names of fields in rows and records, of headers and paths on the wire, and of environment variables.

Configuration keys are in `nemo_gym.config.keys`.
"""

TASK_INDEX_KEY_NAME = "_ng_task_index"
ROLLOUT_INDEX_KEY_NAME = "_ng_rollout_index"
ATTEMPT_INDEX_KEY_NAME = "_ng_attempt_index"
ROLLOUT_ID_KEY_NAME = "_ng_rollout_id"
RESPONSES_CREATE_PARAMS_KEY_NAME = "responses_create_params"
RESPONSE_KEY_NAME = "response"
AGENT_REF_KEY_NAME = "agent_ref"
SKILLS_REF_KEY_NAME = "skills_ref"
TASK_SOURCE_KEY_NAME = "task_source"
"""The instance that declares the dataset of a row."""
TASK_ID_KEY_NAME = "_ng_task_id"
"""The identity of a row that was written as a task with an identity."""
ENVIRONMENT_SERVER_STAMP_KEY_NAME = "_ng_environment_server"
"""The environment server of a row, in results of NeMo Gym 0.7."""
REWARD_KEY_NAME = "reward"
ROLLOUT_INFOS_KEY_NAME = "rollout_infos"
NUM_ROLLOUTS_KEY_NAME = "num_rollouts"
EXPECTED_NUM_ROLLOUTS_KEY_NAME = "expected_num_rollouts"
MISSING_NUM_ROLLOUTS_KEY_NAME = "missing_num_rollouts"

NG_FAILURE_CLASS_KEY = "_ng_failure_class"
NG_NO_PERSIST_KEY = "_ng_no_persist"
NG_TERMINAL_KEY = "_ng_failure_terminal"
NG_TRAJECTORY_KEY = "ng_trajectory"
NG_FAILURE_JUDGE_ERROR_KEY = "_ng_failure_judge_error"
NG_MODEL_CALL_CAPTURE_KEY = "ng_model_call_capture"
NG_AGENT_OBSERVATIONS_KEY = "ng_agent_observations"

NG_FAILURE_DETAIL_KEY = "_ng_failure"
"""The details of a failure: kind, phase, retryable, message and the server it is attributed to."""

STEP_REWARDS_KEY = "step_rewards"
"""The reward of each model turn, if the environment gives rewards per step."""
OPENING_KEY = "opening"
"""The `wire.episode.Opening` in the answer of `/seed_session`."""
CLOSE_PATH = "/close_session"
"""Route of a resources server: ends a session."""

NG_SECONDS_KEY = "_ng_seconds"
"""The duration of a rollout, from sending to the reply."""
NG_PHASES_KEY = "_ng_phases"
"""The duration of each phase of a rollout, in seconds."""
NG_TOOL_ERRORS_KEY = "_ng_tool_errors"
NG_TURNS_KEY = "_ng_turns"
"""For each model turn a list: number of its items, then its input, cached, output and reasoning tokens."""
NG_TURN_SECONDS_KEY = "_ng_turn_seconds"
"""For each model call of a rollout a list: its seconds, and those of the tool calls before the next one."""

NG_TOKEN_CAPTURE_KEY = "_ng_token_capture"
"""The counts of a rollout's token capture, and the reason if the rollout is masked."""
NG_TOKEN_TRACES_KEY = "_ng_token_traces"
"""The captured calls that are not in `response.output`: sub-agents, compacted contexts, branches."""
MASK_SAMPLE_KEY = "mask_sample"
"""True if the reward of a rollout measures nothing: it enters no mean and is not trained on."""

MCP_SESSION_TOKEN_HEADER = "X-NeMo-Gym-Session-Token"
MCP_METADATA_KEY = "mcp"
RESERVED_MCP_TOOL_NAMES = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "mcp"})
UNCALLABLE_NAMES = RESERVED_MCP_TOOL_NAMES | {"reverify_mode", CLOSE_PATH.strip("/")}
"""Routes that end or grade an episode: a model cannot call them."""
RESERVED_TOOL_NAMES = UNCALLABLE_NAMES | {"reset", "step"}
"""Names that no method with `@tool` has; a route of another server may be a tool named `step`."""

ROLLOUT_PATH_PREFIX = "ng-rollout"
BUDGET_PATH_SEGMENT = "budget"
TOKEN_CAPTURE_PATH_SEGMENT = "training-token-capture"
SESSION_ID_KEY = "session_id"

DEADLINE_HEADER = "x-nemo-gym-deadline"
"""Seconds until the caller's deadline, as a decimal number; each hop sends the remainder."""
EPISODE_HEADER = "x-nemo-gym-episode"
"""Reply header of `/seed_session` and tools: a JSON object, `wire.episode.Signals`. An agent may ignore it."""
ROLLOUT_HEADER = "x-nemo-gym-rollout"
"""`<task index>-<rollout index>` of the rollout that a call belongs to; sent only to servers of the run."""

MODELS, RESOURCES, AGENTS = "responses_api_models", "resources_servers", "responses_api_agents"
SERVER_TYPES = (MODELS, RESOURCES, AGENTS)
COMPONENT_FOLDERS = (*SERVER_TYPES, "environments", "benchmarks")
"""The folders of a tree that hold components; each is also a Python package."""

CONFIG_DICT_ENV_VAR = "NEMO_GYM_CONFIG_DICT"
CONFIG_PATH_ENV_VAR = "NEMO_GYM_CONFIG_PATH"
EXTRA_ROOTS_ENV_VAR = "NEMO_GYM_EXTRA_ROOTS"

NODES_PATH = "/nodes"
"""Path of the head server that lists the nodes of a run."""

FIRST_MOVE, RANDOM_MOVE, SCRIPT_PREFIX = "first_move", "random_move", "script:"
"""Scripted players of games: the first listed move, a random one; and `script:A|B`, these moves in turn."""

VERDICTS_ENDING = "rollout_verdicts.jsonl"
"""The name of the file in which run health writes its verdicts of all outputs of a folder."""
