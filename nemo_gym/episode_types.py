"""Episodes and tasks with an identity: the public names."""

from nemo_gym.wire.episode_task import BaseEpisodeRequest as BaseEpisodeRequest
from nemo_gym.wire.episode_task import BaseEpisodeResponse as BaseEpisodeResponse
from nemo_gym.wire.episode_task import EpisodeFailure as EpisodeFailure
from nemo_gym.wire.episode_task import EpisodeId as EpisodeId
from nemo_gym.wire.episode_task import MaterializedTask as MaterializedTask
from nemo_gym.wire.episode_task import TaskId as TaskId
from nemo_gym.wire.episode_task import is_materialized_task_row as is_materialized_task_row
