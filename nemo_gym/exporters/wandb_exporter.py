"""Export runs to Weights & Biases: the configuration, metrics and a table of rollouts."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.config_types import WANDBConfig
from nemo_gym.exporters.base import BaseExporter, ExporterKey

logger = logging.getLogger("nemo_gym.exporters")

TABLE, COLUMN = "Rollouts", "Rollout"
MAX_ROWS = 200_000
MAX_CHARACTERS = 256 * 1024 * 1024
"""Limits of a table: wandb accepts no more rows and keeps the whole table in memory."""
START_SECONDS, FINISH_SECONDS = 60, 300


class WandbExporter(BaseExporter):
    """Export to a separate Weights & Biases run; an open run of the caller is left unchanged."""

    name = "wandb"
    title = "Weights & Biases"
    package = "wandb"
    install_command = "pip install 'nemo-gym[wandb]'"
    config: WANDBConfig
    config_class = WANDBConfig
    keys = (
        ExporterKey("wandb_project", "Report to this Weights & Biases project.", implies_export=True),
        ExporterKey("wandb_name", "Name of the Weights & Biases run.", implies_export=True),
        ExporterKey("wandb_api_key", "API key of Weights & Biases."),
    )

    def setup(self, global_config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise self.not_installed(error) from error
        folder = Path(self.results_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        self._run: Any = wandb.init(
            project=self.config.wandb_project,
            name=self.config.wandb_name,
            dir=str(folder),  # wandb adds the folder `wandb`
            reinit="create_new",
            settings=wandb.Settings(
                api_key=self.config.wandb_api_key,
                init_timeout=START_SECONDS,
                finish_timeout=FINISH_SECONDS,
                console="off",  # do not upload the terminal output of the command
                x_disable_meta=True,  # the command line may hold a key
                disable_job_creation=True,
                silent=True,
            ),
        )
        self.url = self._run.url or str(folder / "wandb")
        self._log_config(global_config)

    def teardown(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _log_config(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(dict(config))

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._run.log(dict(metrics), step=step)

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """Log a table of the first rollouts, as many as MAX_ROWS and MAX_CHARACTERS allow."""
        table = self._wandb.Table(columns=[COLUMN], log_mode="IMMUTABLE")
        remaining_characters = MAX_CHARACTERS
        for number, rollout in enumerate(rollouts):
            text = orjson.dumps(rollout).decode()
            remaining_characters -= len(text)
            if number >= MAX_ROWS or remaining_characters < 0:
                logger.warning("wandb: the table has the first %d rollouts; the output file has all", number)
                break
            table.add_data(text)
        self._run.log({TABLE: table})
