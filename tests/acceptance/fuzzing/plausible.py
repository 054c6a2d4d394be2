"""What exists during a run, and bodies that make sense: so that hostile requests hit live state and not only a 404."""

from __future__ import annotations

import random
import re
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from tests.acceptance.fuzzing.jsontexts import Hostile, Raw, nested
from tests.acceptance.fuzzing.receipts import Wallet

REMEMBERED = 200
ROLES = ("admin", "operator", "reviewer", "viewer", "admin2")
KEYS = {name: f"{name}-secret-of-the-fuzzer" for name in ROLES}
API_KEYS = ",".join(f"{name}:{name.rstrip('2')}:{secret}" for name, secret in KEYS.items())
WORK = {"max_retries": 2, "init_backoff_ms": 20, "max_backoff_ms": 200, "ack_timeout_ms": 2000, "deadline_ms": 20_000}
AGENT_STEPS = ("pay-1", "pay-2", "risky-1", "risky-2", "blocked-1", "look")

_NAMES = re.compile(r"\{(\w+)\}")


def steps(url: str) -> dict[str, dict[str, Any]]:
    """Steps of every kind, whose endpoints answer as they like."""
    anything = {"role": "required"}
    slow = {"endpoint": f"{url}/async", "work": WORK}
    lost = {"endpoint": f"{url}/lost", "work": {**WORK, "deadline_ms": 500}}
    hook = {"kind": "hook", "work": {"deadline_ms": 20_000}}
    listed = {"items": {"role": "required", "type": "array", "for_each": True}, "part": {"role": "output"}}
    bounded = {"type": "object", "maxProperties": 5, "properties": {"a": {"type": "string"}}}
    return {
        "job": slow,
        "typed": {**slow, "attributes": {"a": anything, "text": {"role": "output", "type": "string"}}},
        "schema": {
            **slow,
            "attributes": {"a": {**anything, "schema": bounded}, "b": {"role": "output", "schema": bounded}},
        },
        "first": {**slow, "attributes": {"a": anything, "x": {"role": "output"}}},
        "second": {**slow, "attributes": {"x": anything, "y": {"role": "output"}}, "predicate": "x != 'stop'"},
        "echo": {"kind": "sync", "endpoint": f"{url}/echo", "work": WORK},
        "acked": {"endpoint": f"{url}/echo", "work": {**WORK, "max_retries": 0}},
        "sync": {"kind": "sync", "endpoint": f"{url}/sync", "work": WORK},
        "undone": {**slow, "compensate": {"endpoint": f"{url}/sync", "kind": "sync", "work": WORK}},
        "wanted": {**slow, "cancel_url": f"{url}/cancel"},
        "approved": {**slow, "control": {"approval": {"reason": "look first", "expires_in": "30s"}}},
        "fan": {**slow, "attributes": listed, "fan_out": {"on_failure": "collect", "max_items": 20}},
        "signed": {**slow, "require_signature": True},
        "again": {**slow, "duplicate_status": 200},
        "beating": {**slow, "work": {**WORK, "heartbeat_timeout_ms": 400}},
        "limited": {**slow, "work": {**WORK, "parallelism": 2, "rate_limit": {"count": 5, "per_ms": 100}}},
        "inner": {"kind": "flow", "flow": {"goals": ["job"]}},
        "lost": {**lost, "effect": {"policy": "reconcile"}},
        "asked": {**lost, "effect": {"policy": "reconcile"}, "status_url": f"{url}/status"},
        "once": {**lost, "effect": {"policy": "unsafe_once"}, "control": {"approval": {"expires_in": "30s"}}},
        "shared": {**lost, "effect": {"policy": "dedupe", "scope": "global", "key": {"keep": ["a"]}, "window": "3s"}},
        "owned": {**lost, "effect": {"policy": "reconcile", "scope": "global", "key": {"strip": ["x"]}}},
        "asking": {**hook, "hook": {"token": None}, "attributes": {"x": anything}},
        "named": {**hook, "hook": {"token": "{a}", "on_conflict": "supersede"}, "attributes": {"a": anything}},
        "votes": {**hook, "hook": {"token": "vote", "collect": 3, "on_conflict": "wait", "until": "payload == 'end'"}},
        "refused": {"endpoint": "http://127.0.0.1:1/", "work": {**WORK, "max_retries": 1}},
    }


def policies() -> dict[str, dict[str, Any]]:
    ask = {"type": "require_approval", "reason": "risky", "expires_in": "30s"}
    often = [{"field": "step.gate_count", "operator": "greater_than", "value": 3}]
    return {
        "risky": {"name": "risky", "match": {"step_id": "risky*"}, "action": ask},
        "blocked": {"name": "blocked", "match": {"step_id": "blocked*"}, "action": {"type": "block", "reason": "no"}},
        "often": {"name": "often", "match": {"step_id": "pay*"}, "conditions": often, "action": ask},
    }


_NESTED = {"type": "array", "items": {"$ref": "#/$defs/n"}}
COSTLY_SCHEMAS: list[dict[str, Any]] = [
    {"$defs": {"n": {"anyOf": [_NESTED, _NESTED]}}, "$ref": "#/$defs/n"},
    {"allOf": [{"contains": {"const": f"c{number}"}} for number in range(2000)]},
    {"uniqueItems": True},
    {"type": "array", "items": {"oneOf": [{"pattern": "^(a+)+$"}, {"pattern": "(.*)*x"}]}},
    {"$ref": "#"},
    {"$dynamicRef": "#x", "$dynamicAnchor": "x", "patternProperties": {"(a|a)*$": {"not": {"not": {}}}}},
]
"""Schemas that take long to check, unless the engine bounds the work or refuses them."""
COSTLY_VALUES: list[Any] = [
    *(nested(depth, "arrays", b'"x"') for depth in (14, 18, 24, 60)),
    ["a" * 5000],
    Raw(b"[" + b"1," * 60_000 + b"1]"),
]


class Known:
    """Ids, keys, cursors and receipts that were seen; the newest of each kind."""

    def __init__(self, wallet: Wallet, url: str) -> None:
        self.wallet = wallet
        self.url = url
        self.seen: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self.seen["step_id"].extend(steps(url))
        self.seen["policy_id"].extend(policies())
        self.seen["schedule_id"].extend(("s1", "s2", "s3"))
        self.seen["subscription_id"].extend(("h1", "h2", "h3", "h4"))

    def note(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value and value not in self.seen[name]:
            self.seen[name].append(value)

    def one(self, name: str, dice: random.Random) -> str:
        return dice.choice(self.seen[name]) if self.seen[name] else "none-yet"

    def ids(self, dice: random.Random, path: str) -> dict[str, str]:
        """Ids for the names in a path: of one receipt, where it is the webhook's."""
        if path.startswith("/webhook") and (receipt := self.wallet.any(dice)) is not None:
            return {"flow_id": receipt.flow_id, "step_id": receipt.step_id, "receipt_token": receipt.token}
        found = {name: self.one(name, dice) for name in _NAMES.findall(path)}
        if "workflow_id" in found and "step_id" in found:
            found["step_id"] = dice.choice(AGENT_STEPS)
        elif dice.random() < 0.9:  # what strangers change or delete is seldom what the others need
            found |= {name: f"other-{dice.randrange(8)}" for name in ("step_id", "policy_id") if name in found}
        return found

    def key(self, dice: random.Random, *, admin: bool) -> bytes:
        return KEYS["admin" if admin or dice.random() < 0.8 else dice.choice(ROLES)].encode()

    def token(self, dice: random.Random) -> str | None:
        receipt = self.wallet.any(dice)
        return None if receipt is None else receipt.token

    def value(self, name: str, dice: random.Random) -> Any:
        """What a field of this name may well hold; None: nothing in particular."""
        if name in self.seen:
            return self.one(name, dice)
        choices: dict[str, tuple[Any, ...]] = {
            "goals": tuple(self.seen["step_id"])[-20:],
            "of": ("job", "first"),
            "endpoint": (f"{self.url}/async", f"{self.url}/sync", "http://127.0.0.1:1/", "http://[::1]:1/"),
            "cancel_url": (f"{self.url}/cancel",),
            "status_url": (f"{self.url}/status", "http://127.0.0.1:1/"),
            "outcome": ("applied", "not_applied", "failed"),
            "downstream_window": ("24h", "90s", "forever", "0s"),
            "url": (f"{self.url}/hook/odd", f"{self.url}/hook/good"),
            "cron": ("0 6 * * *", "59 23 31 12 *", "0 0 29 2 *"),
            "timezone": ("Europe/Vienna", "UTC", "Nowhere/At_All"),
            "every_ms": (3_600_000, 60_000),
            "events": ("flow.failed", "approval.*", "work.failed"),
            "expression": ("step.gate_count > 3", "true", "step_input.a == 1", "1 / 0 == 1", "a" * 200),
            "predicate": ("x != 1", "true", "has(x)"),
            "field": ("step.gate_count", "step_input.a", "step.id", "labels.team"),
            "value": (1, "a", True, None, [1, 2]),
            "expires_in": ("1s", "24h", "0s"),
            "window": ("24h", "forever"),
            "idempotency_window": ("24h", "forever", 1000),
            "lease_seconds": (0.1, 1, 60.0),
            "since": ("2026-01-01T00:00:00Z",),
            "until": ("2036-01-01T00:00:00Z",),
            "label": ("team:a", "a:"),
            "limit": (1, 10),
            "max_retries": (0, 1, 2),
            "init_backoff_ms": (20, 1000),
            "max_backoff_ms": (1000,),
            "deadline_ms": (500, 20_000),
            "ack_timeout_ms": (2000,),
        }
        found = choices.get(name)
        return dice.choice(found) if found else None

    def parameter(self, name: str, dice: random.Random) -> str:
        """What a query parameter of this name may well be."""
        choices = {
            "status": (
                "active",
                "failed",
                "pending",
                "in_progress",
                "succeeded",
                "not_completed",
                "gated_not_completed",
            ),
            "label": ("team:a", "a:b:c", "x"),
            "limit": ("1", "2", "1000", "0", "1001", "01"),
            "wait": ("0", "0.01", "60", "1e3"),
            "last_event_id": ("0", "1", "999999999999999999", "1000000000000000000"),
            "overdue": ("true", "false", "1"),
            "since": ("2026-01-01T00:00:00Z", "2026-01-01", "0001-01-01T00:00:00Z"),
            "include_prior_output": ("true", "false"),
            "goal": ("job", "first"),
            "step": ("job", "first", "lost"),
            "hold": ("reconcile", "unsafe_once", "dedup"),
        }
        found = choices.get(name)
        return dice.choice(found) if found else self.one(name, dice)


def plausible(operation: str, dice: random.Random, known: Known, hostile: Hostile) -> Any:
    """A body for some operation that says what its schema cannot; None: whatever its schema allows."""
    every = {"every_ms": 3_600_000} if dice.random() < 0.5 else {"cron": "0 6 * * *", "timezone": "UTC"}
    events = dice.choice((["flow.failed"], ["approval.*"], ["flow.completed", "flow.failed"]))
    url = f"{known.url}/hook/{dice.choice(('good', 'odd'))}"
    makers: dict[str, Callable[[], Any]] = {
        "start_flow": lambda: start(dice, known, hostile),
        "plan_flow": lambda: start(dice, known, hostile),
        "complete_work": lambda: result(dice, hostile),
        "complete_work_by_header": lambda: result(dice, hostile),
        "settle_reconciliation": lambda: settlement(dice, hostile),
        "beat_work": lambda: {"progress": dice.random(), "message": hostile.text()},
        "put_step": lambda: dice.choice(list(steps(known.url).values())),
        "put_policy": lambda: dice.choice(list(policies().values())),
        "put_schedule": lambda: {**every, "flow": start(dice, known, hostile), "enabled": dice.random() < 0.8},
        "put_subscription": lambda: {"url": url, "events": events, "description": hostile.text()},
        "gate_step": lambda: {
            "step_input": hostile.members(),
            "step_name": hostile.text(),
            "claim": {"lease_seconds": 1.0},
        },
        "complete_step": lambda: {
            "output": hostile.members(),
            "metadata": hostile.members(),
            "success": dice.random() < 0.7,
            "error": hostile.text(),
        },
        "create_workflow": lambda: {
            "workflow_name": "run",
            "metadata": hostile.members(),
            "labels": labels(dice, hostile),
        },
    }
    maker = makers.get(operation)
    return None if maker is None else maker()


def labels(dice: random.Random, hostile: Hostile) -> dict[str, str]:
    if dice.random() < 0.5:
        return {"team": "a"}
    return {dice.choice(("team", hostile.text())): hostile.text()}


def start(dice: random.Random, known: Known, hostile: Hostile) -> dict[str, Any]:
    """A flow with one goal or two, and hostile values to begin with."""
    names = dice.sample(list(known.seen["step_id"]), k=dice.choice((1, 1, 1, 2)))
    init = {"a": hostile.json(), "x": hostile.json(), **hostile.members()}
    if "fan" in names:
        init["items"] = [hostile.json() for _ in range(dice.choice((0, 1, 3)))]
    body: dict[str, Any] = {"goals": names, "init": init}
    if dice.random() < 0.03:
        body["goals"] = [*names, known.token(dice) or "nowhere"]
    if dice.random() < 0.3:
        body["metadata"] = hostile.members()
    if dice.random() < 0.3:
        body["labels"] = labels(dice, hostile)
    if dice.random() < 0.1:
        body["flow_id"] = f"own-{dice.randrange(1000)}" if dice.random() < 0.7 else hostile.text()
    if dice.random() < 0.1:
        body["init_keys"] = {dice.choice(names): dice.choice(("order-1", "order-2", hostile.text()))}
    if dice.random() < 0.1:
        body |= {"deadline_ms": dice.choice((300, 20_000)), "on_deadline": dice.choice(("fail", "cancel"))}
    return body


def settlement(dice: random.Random, hostile: Hostile) -> dict[str, Any]:
    """What an operator says of an unknown outcome."""
    said = (
        {"outcome": "applied", "outputs": hostile.members()},
        {"outcome": "not_applied"},
        {"outcome": "failed", "error": hostile.text()},
    )
    return {**dice.choice(said), "note": hostile.text()}


def result(dice: random.Random, hostile: Hostile) -> dict[str, Any]:
    """What a worker reports: most of it is taken."""
    chance = dice.random()
    if chance < 0.55:
        return {"success": True, "outputs": {"text": hostile.text(), "x": hostile.json(), **hostile.members()}}
    if chance < 0.75:
        return {"success": False, "error": hostile.text()}
    retry = dice.choice((0, 0, 0.01, 1, 1e9, 0.5))
    return {
        "success": False,
        "error": hostile.text(),
        "retriable": True,
        "retry_after": retry,
        "attempt": dice.choice((1, 1, 2, 99)),
    }
