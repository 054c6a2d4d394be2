"""Calls for operators and reviewers: approvals, unknown outcomes, policies and subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from counterfoil.client.arguments import Moment, mapping, pair, time_text
from counterfoil.client.connection import ApiConnection, part
from counterfoil.client.documents import (
    Approval,
    ApprovalPage,
    Delivery,
    DeliveryPage,
    Policy,
    PolicyPage,
    PolicyPut,
    PolicyTested,
    PolicyVersion,
    Reconciliation,
    ReconciliationPage,
    SettledOutcome,
    Subscription,
    SubscriptionPage,
    SubscriptionPut,
)


class ControlCalls(ApiConnection):
    """Approvals, the reconciliation queue, policies and subscriptions."""

    # -- approvals -----------------------------------------------------------------------------

    async def approvals(
        self,
        *,
        status: str | None = None,
        flow_id: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> ApprovalPage:
        """One page of approvals, oldest first, of workflows and of flows that the engine drives."""
        wanted = {"status": status, "flow_id": flow_id, "cursor": cursor, "limit": limit}
        return cast(ApprovalPage, await self._call("GET", "/api/v1/approvals", query=wanted))

    async def approval(self, approval_id: str) -> Approval:
        """One approval, with the history of its work item."""
        return cast(Approval, await self._call("GET", f"/api/v1/approvals/{part(approval_id)}"))

    async def approve(self, approval_id: str, comment: str | None = None) -> Approval:
        """Approve. The API key identifies the reviewer; with the last approval that is needed, the step may run."""
        body = None if comment is None else {"comment": comment}
        path = f"/api/v1/approvals/{part(approval_id)}/approve"
        return cast(Approval, await self._call("POST", path, body=body))

    async def reject(self, approval_id: str, reason: str | None = None) -> Approval:
        """Reject. One rejection is enough: the step is blocked, other branches continue."""
        body = None if reason is None else {"reason": reason}
        path = f"/api/v1/approvals/{part(approval_id)}/reject"
        return cast(Approval, await self._call("POST", path, body=body))

    # -- unknown outcomes ----------------------------------------------------------------------

    async def reconciliations(
        self,
        *,
        step: str | None = None,
        hold: Literal["reconcile", "unsafe_once", "irreversible"] | None = None,
        since: Moment | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> ReconciliationPage:
        """One page of the work items whose outcome is unknown and must be settled, the longest waiting first.

        Lapsed reservations of irreversible effects are among them, with ``work_id`` None: ``settle_effect`` settles
        those.
        """
        wanted: dict[str, str | int | None] = {"step": step, "hold": hold, "cursor": cursor, "limit": limit}
        if since is not None:
            wanted["since"] = time_text("since", since)
        return cast(ReconciliationPage, await self._call("GET", "/api/v1/reconciliations", query=wanted))

    async def reconciliation(self, work_id: str) -> Reconciliation:
        """One item of the queue; ``NotWaitingForReconciliation`` if it does not wait (any longer)."""
        return cast(Reconciliation, await self._call("GET", _reconciliation(work_id)))

    async def settle(
        self,
        work_id: str,
        outcome: Literal["applied", "not_applied", "failed"],
        *,
        outputs: Mapping[str, Any] | None = None,
        error: str | None = None,
        note: str | None = None,
    ) -> SettledOutcome:
        """Settle an unknown outcome; ``NotWaitingForReconciliation`` if another caller was first.

        ``applied``: the item succeeds with ``outputs``. ``not_applied``: it is sent again at once; an ``unsafe_once``
        item needs a new approval first, ``approval_id`` of the answer. ``failed``: it fails with ``error``.
        """
        found = None if outputs is None else mapping("outputs", outputs)
        given = {"outputs": found, "error": error, "note": note}
        body = {"outcome": outcome, **{name: value for name, value in given.items() if value is not None}}
        return cast(SettledOutcome, await self._call("POST", _reconciliation(work_id), body=body))

    # -- policies ------------------------------------------------------------------------------

    async def put_policy(self, policy_id: str, definition: Mapping[str, Any]) -> PolicyPut:
        """Create or change a policy. It applies to every decision after the answer."""
        path = f"/api/v1/policies/{part(policy_id)}"
        return cast(PolicyPut, await self._call("PUT", path, body=mapping("definition", definition)))

    async def get_policy(self, policy_id: str) -> Policy:
        return cast(Policy, await self._call("GET", f"/api/v1/policies/{part(policy_id)}"))

    async def list_policies(self, *, cursor: str | None = None, limit: int | None = None) -> PolicyPage:
        """One page of policies, by id; pass ``next_cursor`` as ``cursor`` for the next one."""
        query = {"cursor": cursor, "limit": limit}
        return cast(PolicyPage, await self._call("GET", "/api/v1/policies", query=query))

    async def delete_policy(self, policy_id: str) -> None:
        """Delete a policy. Earlier decisions stay as they are."""
        await self._call("DELETE", f"/api/v1/policies/{part(policy_id)}")

    async def policy_versions(self, policy_id: str) -> list[PolicyVersion]:
        """The versions of a policy, newest first, also after it was deleted."""
        document = await self._call("GET", f"/api/v1/policies/{part(policy_id)}/versions")
        return cast("list[PolicyVersion]", document["versions"])

    async def test_policy(
        self,
        policy: Mapping[str, Any] | None = None,
        *,
        call: Mapping[str, Any] | None = None,
        recorded: tuple[str, str] | None = None,
    ) -> PolicyTested:
        """What a policy, or all policies in force, would decide; nothing is recorded.

        Either about a described ``call``, or about the next gate call of a ``recorded`` step (workflow id, step id).
        """
        body: dict[str, Any] = {}
        if policy is not None:
            body["policy"] = mapping("policy", policy)
        if call is not None:
            body["call"] = mapping("call", call)
        if recorded is not None:
            workflow_id, step_id = pair("recorded", recorded, "(workflow id, step id)")
            body["recorded"] = {"workflow_id": workflow_id, "step_id": step_id}
        return cast(PolicyTested, await self._call("POST", "/api/v1/policies/test", body=body))

    # -- subscriptions -------------------------------------------------------------------------

    async def put_subscription(self, subscription_id: str, definition: Mapping[str, Any]) -> SubscriptionPut:
        """Create or change a subscription, also to pause it (``"enabled": false``).

        The answer has the ``signing_secret`` with which the subscriber verifies messages.
        """
        body = mapping("definition", definition)
        return cast(SubscriptionPut, await self._call("PUT", _subscription(subscription_id), body=body))

    async def get_subscription(self, subscription_id: str) -> Subscription:
        return cast(Subscription, await self._call("GET", _subscription(subscription_id)))

    async def list_subscriptions(self, *, cursor: str | None = None, limit: int | None = None) -> SubscriptionPage:
        """One page of subscriptions, by id; pass ``next_cursor`` as ``cursor`` for the next one."""
        query = {"cursor": cursor, "limit": limit}
        return cast(SubscriptionPage, await self._call("GET", "/api/v1/subscriptions", query=query))

    async def delete_subscription(self, subscription_id: str) -> None:
        """Delete a subscription and its pending deliveries."""
        await self._call("DELETE", _subscription(subscription_id))

    async def deliveries(
        self, subscription_id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> DeliveryPage:
        """One page of the deliveries that are pending or were given up."""
        path = f"{_subscription(subscription_id)}/deliveries"
        return cast(DeliveryPage, await self._call("GET", path, query={"cursor": cursor, "limit": limit}))

    async def redeliver(self, subscription_id: str, delivery_id: str) -> Delivery:
        """Retry a delivery now; one that was given up gets all its attempts again."""
        path = f"{_subscription(subscription_id)}/deliveries/{part(delivery_id)}/redeliver"
        return cast(Delivery, await self._call("POST", path))

    async def test_subscription(self, subscription_id: str) -> Delivery:
        """Send a test message to a subscriber, signed and retried like every other message."""
        return cast(Delivery, await self._call("POST", f"{_subscription(subscription_id)}/test"))


def _subscription(subscription_id: str) -> str:
    return f"/api/v1/subscriptions/{part(subscription_id)}"


def _reconciliation(work_id: str) -> str:
    return f"/api/v1/reconciliations/{part(work_id)}"
