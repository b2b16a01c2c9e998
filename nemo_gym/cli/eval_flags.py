"""The flags of `gym eval run` and the keys they stand for."""

import argparse

DEFAULT_OUTPUT = "results/rollouts.jsonl"
SAMPLING = ("temperature", "top_p", "max_output_tokens")
GRACE_KEY = "interrupt_grace_seconds"
DEFAULT_GRACE = 30.0

FLAGS = {
    "agent_name": "--agent",
    "input_jsonl_fpath": "--input",
    "output_jsonl_fpath": "--output",
    "limit": "--limit",
    "num_repeats": "--num-repeats",
    "prompt_config": "--prompt-config",
    "num_samples_in_parallel": "--concurrency",
    "split": "--split",
    "resume_from_cache": "--resume",
    "force_resume": "--force-resume",
    "overwrite": "--overwrite",
    "disable_aggregation": "--disable-aggregation",
    "max_failures": "--max-failures",
    "fail_fast": "-x",
    "max_rollout_attempts": "--max-attempts",
    "rollout_timeout_seconds": "--rollout-timeout",
    "max_steps_per_rollout": "--max-steps",
    "max_tokens_per_rollout": "--max-rollout-tokens",
    "max_total_tokens": "--max-total-tokens",
    "responses_create_params": "--temperature, --top-p, --max-output-tokens",
}
"""Keys that have a flag of their own."""


def add_rollout_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rows, how often, and what happens to the results."""
    rows = parser.add_argument_group("rows")
    rows.add_argument("-i", "--input", metavar="FILE", help="JSONL rows (default: the agents' datasets)")
    rows.add_argument("--split", choices=("train", "validation", "benchmark", "example"), help="which of the datasets")
    rows.add_argument("-a", "--agent", metavar="NAME", help="the agent of rows that name none")
    rows.add_argument("--limit", type=int, metavar="N", help="only the first N rows")
    rows.add_argument(
        "--num-repeats", metavar="N", help="rollouts per row; or per agent, as NAME=N,_default=N (default: 1)"
    )
    rows.add_argument("--prompt-config", metavar="FILE", help="a prompt that builds the input of every row")
    how = parser.add_argument_group("collection")
    how.add_argument("-o", "--output", metavar="FILE", help=f"where rollouts go (default: {DEFAULT_OUTPUT})")
    how.add_argument("--concurrency", type=int, metavar="N", help="rollouts in flight at once")
    how.add_argument("--temperature", type=float, metavar="T", help="for every row, whatever it says itself")
    how.add_argument("--top-p", type=float, metavar="P", help="the same")
    how.add_argument("--max-output-tokens", type=int, metavar="N", help="the same")
    how.add_argument("--disable-aggregation", action="store_true", help="do not compute metrics at the end")
    again = parser.add_argument_group("earlier results and failures")
    again.add_argument("--resume", action="store_true", help="keep what is finished and run the rest")
    again.add_argument("--force-resume", action="store_true", help="resume although data, configuration or code differ")
    again.add_argument("--overwrite", action="store_true", help="remove earlier results instead of keeping them aside")
    again.add_argument("--max-failures", type=int, metavar="N", help="stop when so many rollouts have failed")
    again.add_argument("-x", "--fail-fast", action="store_true", help="stop at the first rollout that failed for good")
    again.add_argument("--max-attempts", type=int, metavar="N", help="how often a failed rollout is tried, all in all")
    limits = parser.add_argument_group("limits (more are keys: see docs/evaluation.md)")
    limits.add_argument("--rollout-timeout", type=float, metavar="SECONDS", help="wall time of one rollout")
    limits.add_argument("--max-steps", type=int, metavar="N", help="model turns of one rollout")
    limits.add_argument("--max-rollout-tokens", type=int, metavar="N", help="tokens of one rollout, in and out")
    limits.add_argument("--max-total-tokens", type=int, metavar="N", help="tokens of the whole run; then it stops")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Where rollouts are run, and what is shown of them."""
    where = parser.add_argument_group("servers and output")
    where.add_argument("--no-serve", action="store_true", help="use servers that are running already")
    where.add_argument("--run", metavar="RUN", help="which, with --no-serve: a process id, a head's port, or HOST:PORT")
    where.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help=f"how long rollouts in flight go on after Ctrl-C ({GRACE_KEY}; default: {DEFAULT_GRACE:g})",
    )
    where.add_argument("--dry-run", action="store_true", help="check rows, build the servers, collect nothing")
    where.add_argument("-q", "--quiet", action="store_true", help="no progress")
    where.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")
