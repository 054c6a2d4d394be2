"""For programs that use an engine: the API client and the worker kit."""

from counterfoil.client.api import Client
from counterfoil.client.documents import Event, Flow, FlowResult, Plan, Schedule, StartedFlow, StepRun, WorkItem
from counterfoil.client.errors import (
    ApiError,
    ClientError,
    ConnectionFailed,
    InvalidDispatch,
    NotCompleted,
    ReportRefused,
    ReportUndelivered,
    StepFailed,
)
from counterfoil.client.reports import Backoff, Receipt, Reporter, Verdict
from counterfoil.client.worker import Assignment, Worker

__all__ = [
    "ApiError",
    "Assignment",
    "Backoff",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Event",
    "Flow",
    "FlowResult",
    "InvalidDispatch",
    "NotCompleted",
    "Plan",
    "Receipt",
    "ReportRefused",
    "ReportUndelivered",
    "Reporter",
    "Schedule",
    "StartedFlow",
    "StepFailed",
    "StepRun",
    "Verdict",
    "WorkItem",
    "Worker",
]
