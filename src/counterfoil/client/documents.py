"""The engine's answers as types, under the names that programs use; ``counterfoil.wire`` declares them.

They are the JSON documents themselves, not copies: a field that a newer engine adds is there too.
"""

from __future__ import annotations

from counterfoil.wire.approvals import ApprovalDocument as Approval
from counterfoil.wire.approvals import ApprovalsPage as ApprovalPage
from counterfoil.wire.approvals import PendingApproval, StepReviewed
from counterfoil.wire.callbacks import CallbackDetail, CallbackPage, CallbackReplayed
from counterfoil.wire.callbacks import CallbackDocument as Callback
from counterfoil.wire.effects import AuditEntry, EffectPage, EffectSummary, LastProbe, ReconciliationPage
from counterfoil.wire.effects import EffectCompleted as CompletedEffect
from counterfoil.wire.effects import EffectDetail as Effect
from counterfoil.wire.effects import EffectReserved as ReservedEffect
from counterfoil.wire.effects import EffectSettled as SettledEffect
from counterfoil.wire.effects import OutcomeSettled as SettledOutcome
from counterfoil.wire.effects import ReconciliationDocument as Reconciliation
from counterfoil.wire.flows import FlowDocument as Flow
from counterfoil.wire.flows import FlowParent as Parent
from counterfoil.wire.flows import FlowRedriven as RedrivenFlow
from counterfoil.wire.flows import FlowResult, FlowSummary
from counterfoil.wire.flows import FlowReused as ReusedFlow
from counterfoil.wire.flows import FlowsPage as FlowPage
from counterfoil.wire.flows import FlowStarted as StartedFlow
from counterfoil.wire.flows import PlanDocument as Plan
from counterfoil.wire.flows import StepCompensation as Compensated
from counterfoil.wire.flows import StepInFlow as StepRun
from counterfoil.wire.gate.calls import ClaimDocument as Claim
from counterfoil.wire.gate.calls import ClaimProlonged, GateAnswer, RetryContext
from counterfoil.wire.gate.calls import KeyOwnerDocument as KeyOwner
from counterfoil.wire.gate.workflows import WorkflowDocument as Workflow
from counterfoil.wire.gate.workflows import WorkflowEnded, WorkflowStep, WorkflowStepDetail, WorkflowSummary
from counterfoil.wire.gate.workflows import WorkflowsPage as WorkflowPage
from counterfoil.wire.hooks import HookDocument as Hook
from counterfoil.wire.hooks import HooksPage as HookPage
from counterfoil.wire.hooks import ListedHook
from counterfoil.wire.hooks import PayloadTaken as DeliveredPayload
from counterfoil.wire.journal import EventsPage as EventPage
from counterfoil.wire.journal import JournalEvent as Event
from counterfoil.wire.operations import ReadinessDocument as Readiness
from counterfoil.wire.policies import MatchedPolicy as PolicyMatch
from counterfoil.wire.policies import PoliciesPage as PolicyPage
from counterfoil.wire.policies import PolicyDocument as Policy
from counterfoil.wire.policies import PolicyPut, PolicyTested, PolicyVersion
from counterfoil.wire.schedules import ScheduleDocument as Schedule
from counterfoil.wire.schedules import SchedulesPage as SchedulePage
from counterfoil.wire.steps import StepDocument as Step
from counterfoil.wire.steps import StepPut
from counterfoil.wire.subscriptions import DeliveriesPage as DeliveryPage
from counterfoil.wire.subscriptions import DeliveryDocument as Delivery
from counterfoil.wire.subscriptions import SubscriptionDocument as Subscription
from counterfoil.wire.subscriptions import SubscriptionPut
from counterfoil.wire.subscriptions import SubscriptionsPage as SubscriptionPage
from counterfoil.wire.work import AttemptDocument as Attempt
from counterfoil.wire.work import ReportTaken, WorkDetail, WorkPage
from counterfoil.wire.work import WorkDocument as WorkItem
from counterfoil.wire.work import WorkRedriven as RedrivenWork
from counterfoil.wire.work import WorkRedrivenByFilter as RedrivenByFilter

__all__ = [
    "Approval",
    "ApprovalPage",
    "Attempt",
    "AuditEntry",
    "Callback",
    "CallbackDetail",
    "CallbackPage",
    "CallbackReplayed",
    "Claim",
    "ClaimProlonged",
    "Compensated",
    "CompletedEffect",
    "DeliveredPayload",
    "Delivery",
    "DeliveryPage",
    "Effect",
    "EffectPage",
    "EffectSummary",
    "Event",
    "EventPage",
    "Flow",
    "FlowPage",
    "FlowResult",
    "FlowSummary",
    "GateAnswer",
    "Hook",
    "HookPage",
    "KeyOwner",
    "LastProbe",
    "ListedHook",
    "Parent",
    "PendingApproval",
    "Plan",
    "Policy",
    "PolicyMatch",
    "PolicyPage",
    "PolicyPut",
    "PolicyTested",
    "PolicyVersion",
    "Readiness",
    "Reconciliation",
    "ReconciliationPage",
    "RedrivenByFilter",
    "RedrivenFlow",
    "RedrivenWork",
    "ReportTaken",
    "ReservedEffect",
    "RetryContext",
    "ReusedFlow",
    "Schedule",
    "SchedulePage",
    "SettledEffect",
    "SettledOutcome",
    "StartedFlow",
    "Step",
    "StepPut",
    "StepReviewed",
    "StepRun",
    "Subscription",
    "SubscriptionPage",
    "SubscriptionPut",
    "WorkDetail",
    "WorkItem",
    "WorkPage",
    "Workflow",
    "WorkflowEnded",
    "WorkflowPage",
    "WorkflowStep",
    "WorkflowStepDetail",
    "WorkflowSummary",
]
