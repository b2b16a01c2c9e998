"""Names of run health for code written for NeMo Gym; the definitions are in `nemo_gym.analysis`."""

from nemo_gym.analysis.rollout_health import HealthCheckResult as HealthCheckResult
from nemo_gym.analysis.rollout_health import format_health_report as format_health_report
from nemo_gym.analysis.rollout_health import health_check_run_dir as health_check_run_dir
from nemo_gym.analysis.rollout_health import normalize_ignored_checks as normalize_ignored_checks
from nemo_gym.analysis.rollout_health import run_health_checks as run_health_checks
