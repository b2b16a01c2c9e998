"""Request and response of aggregated metrics. Separate, because scoring files needs no other wire model."""

from typing import Any

from pydantic import BaseModel


class AggregateMetricsRequest(BaseModel):
    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    group_level_metrics: list[dict[str, Any]] = []
    agent_metrics: dict[str, Any] = {}
    key_metrics: dict[str, Any] = {}
