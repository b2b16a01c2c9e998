# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this module
"""Observations that agents report, under their public names. A facade over `wire.observations`."""

from nemo_gym.wire.observations import (
    AgentEpisode,
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    ObservationGap,
    SandboxObservation,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryTokenStats,
    TrajectoryToolCall,
    TrajectoryTurn,
    join_model_call_observations,
)
