"""What a store may hold that is copied: rows of every table, with values that are hard to carry over."""

from __future__ import annotations

from typing import Any

LARGEST = 2**63 - 1
TABLES = {
    "step_versions": ("version",),
    "steps": ("step_id",),
    "register": ("only_one",),
    "plans": ("plan_id",),
    "flows": ("ordinal",),
    "flow_inputs": ("flow_id",),
    "flow_labels": ("label", "flow_id"),
    "flow_steps": ("flow_id", "step_id"),
    "work": ("ordinal",),
    "journal": ("seq",),
    "cancel_calls": ("call_id",),
    "schedules": ("schedule_id",),
    "step_rates": ("step_id",),
    "gates": ("flow_id", "step_id"),
    "approvals": ("ordinal",),
    "key_owners": ("key_id",),
    "controls": ("only_one",),
    "policies": ("policy_id",),
    "policy_versions": ("policy_id", "version"),
    "subscriptions": ("subscription_id",),
    "deliveries": ("ordinal",),
    "receipt_checks": ("check_value",),
    "reconciliations": ("work_id",),
    "dedup_records": ("dedup_id",),
    "dedup_waiters": ("work_id",),
    "keyed_flows": ("ordinal",),
    "hooks": ("hook_id",),
    "hook_tokens": ("token_id",),
    "hook_payloads": ("payload_id",),
    "hook_deliveries": ("delivery_key",),
    "reservations": ("effect_id",),
    "fence_floors": ("bucket",),
    "callbacks": ("ordinal",),
}
"""Every table and its key. A table that is added to the schema is copied all the same, and must be added here."""

NOTHING = (None,) * 4
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "step_versions": [("v1", "räuber", '{"endpoint":"http://worker.test"}'), ("v2", "job", "{}"), ("v10", "job", "{}")],
    "steps": [("räuber", "v1", 0, LARGEST)],
    "register": [(1, LARGEST)],
    "plans": [("p1", '{"steps":["räuber"]}'), ("P", "{}")],
    "flows": [
        (3, "z", "completed", 1, 0, None, 2, "p1", '{"depth":1}', None, None, 0, None),
        (4, "a", "failed", 1, 0, '{"code":"X"}', LARGEST, None, None, None, '{"steps":[]}', 2**31 - 1, LARGEST),
        (9, "ß", "active", 1, 1, None, None, None, None, LARGEST, None, 1, None),
    ],
    "flow_inputs": [("z", '["job"]', r'{"nul":"\u0000","line":"\n"}', "{}", '{"tëam":"🦆"}', '{"deadline_ms":5}')],
    "flow_labels": [("tëam:🦆", "z"), ("tz:", "z"), ("T:", "z"), ("t\u00e9:\u2028", "z")],
    "flow_steps": [
        (
            "z",
            "job",
            "v2",
            "completed",
            1,
            1,
            0,
            0,
            1,
            2,
            r'{"n":12345678901234567890123,"a":"\u0000"}',
            *NOTHING,
            0,
            3,
        ),
        ("z", "Job", "v2", "skipped", 0, 0, 0, 0, None, None, None, '{"code":"X"}', 1, LARGEST, 2**31 - 1, 5, 0),
    ],
    "work": [
        (
            *(7, "w1", "z", "job", 0, "v2", "active", 2**31 - 1, "key", "job@h", 1, 2, 3, "a node", 1, 1, None),
            *("0.5", "\U0001f986 \\ \t \r\n '\"", None, "{}", None, None, '{"a":1}', "w0", "w00", "räuber"),
        )
    ],
    "journal": [
        (1, "z", None, 1, '[["flow_started",null,0,null,{}]]'),
        (5, "z", "w1", 2, r'[["work_created","job",1,0,{"text":"\ud83e\udd86 \\u0000"}]]'),
    ],
    "cancel_calls": [("c1", "z", "job", "w1", "http://worker.test/cancel", "{}", 3, LARGEST)],
    "schedules": [
        ("nächtlich", "0 6 * * *", "Europe/Vienna", None, "{}", "one", 1, 0, LARGEST, 1, "z", '{"code":"X"}', 0, 1),
        ("quick", None, None, 100, '{"goals":["job"]}', "all", 0, 0, None, None, None, None, 0, 1),
    ],
    "step_rates": [("job", 10, "[1800000000000,7,0]")],
    "gates": [
        (
            *("z", "räuber", "w1", "", 2**31 - 1, 0, 1, LARGEST, "allow", "block", "dec_1", "d"),
            *(None, None, None, None, "{}"),
        ),
        (
            *("z", "Räuber", "w1", "k\u2028", 1, 1, 1, 2, "require_approval", "allow", "dec_2", "d"),
            *("apr_1", "agent 🦆", LARGEST, "w1", r'{"reason":"\u0000"}'),
        ),
    ],
    "approvals": [
        (
            *(
                2,
                "apr_1",
                "z",
                "job",
                "w1",
                1,
                "d",
                "approved",
                1,
                LARGEST,
                2,
                1,
                "high",
                "ëve",
                "r",
                '[{"version":1}]',
            ),
            *(r'{"text":"\u0000"}', '[{"by":"ëve"}]', 5),
        ),
        (4, "apr_0", "z", "job", "w1", 2, "d", "void", 1, 2, 1, 0, "low", None, None, "[]", None, "[]", None),
    ],
    "key_owners": [("step:é", "z", "job", None, 1, LARGEST), ("workflow:E", "a", None, "d", 0, None)],
    "controls": [(1, LARGEST)],
    "policies": [("p", 2, None, "api", "ëve", 1, LARGEST), ("P", 1, '{"name":"🦆"}', "policies.json", "local", 1, 1)],
    "policy_versions": [("p", 1, "{}", "api", "ëve", 1), ("p", 2, None, "api", "ëve", 2), ("P", 1, "{}", "f", "l", 1)],
    "subscriptions": [("s", '{"url":"http://subscriber.test"}', "täglich aus", 1, LARGEST), ("S", "{}", None, 0, 1)],
    "deliveries": [
        (8, "d1", "s", "z", "flow_completed", r'{"text":"\u0000"}', 3, LARGEST, "HTTP 503", 1),
        (11, "d2", "s", "z", "flow_started", "{}", 0, None, None, 1),
    ],
    "receipt_checks": [("0f", 0, LARGEST), ("a1", 5, None)],
    "reconciliations": [
        ("w1", "z", "job", "reconcile", "ack_timeout", 1, 5, LARGEST, 2, 4, "unknown", 1),
        ("w2", "a", "räuber", None, "node_lost", 2, 5, None, 0, None, None, 0),
    ],
    "dedup_records": [
        ("d1", "job", "clé", "success", "w1", "z", r'{"result":{"text":"\u0000"}}', 1, LARGEST, 0, None),
        ("d2", "job", "k", "pending", "w2", "a", None, None, None, 1, 5),
    ],
    "dedup_waiters": [("w3", "z", "d2", LARGEST)],
    "keyed_flows": [(4, "z", "Straße 7", LARGEST, "digest", LARGEST, 1), (9, "flow", "k", 1, "digest", 0, 0)],
    "hooks": [
        ("z\nö\n0\n0", "z", "ö", 0, "waiting", "text:1", "order:é", 3, 1, "w1", 2, LARGEST, 0, 5, LARGEST),
        ("a\njob\n1\n2", "a", "job", 1, "expected", "made:2", None, 1, 1, None, 1, 9, 1, None, None),
    ],
    "hook_tokens": [
        ("text:1", "z\nö\n0\n0", "z", "ö", "w1", '[["a\\njob\\n0\\n0","a","job","w2"]]', LARGEST),
        ("made:3", "a\njob\n0\n0", "a", "job", "w2", "[]", None),
    ],
    "hook_payloads": [("z\nö\n0\n0\n0", "z", r'{"text":"\u0000"}'), ("a\njob\n1\n2\n0", "a", None)],
    "hook_deliveries": [("0f", "z", "ö", "z\nö\n0\n0")],
    "reservations": [
        (
            *("e1", "tööl", "clé/🦆", "irreversible", "complete-success", LARGEST, "h\u2028", 1, None, "d", None),
            *(r'{"result":"\u0000"}', 2, None, LARGEST, 2, '[{"at":1}]'),
        ),
        ("e2", "tool", "..", "write-idempotent", "pending", 1, "h", 1, 5, None, LARGEST, *NOTHING[:3], 0, 1, "[]"),
    ],
    "fence_floors": [("00ff", 1), ("ffff", LARGEST)],
    "callbacks": [
        (
            *(3, "c1", LARGEST, "completion", "ALREADY_SUCCEEDED", 400, "z", "räuber", "w1", 2),
            *(LARGEST, "sha256:0f", "::1", "4bf92f3577b34da6a3ce929d0e0e4736", '{"success":true,"outputs":{"n":"ë"}}'),
            '{"x-event":"ë"}',
        ),
        (7, "c2", 1, "heartbeat", "UNKNOWN_RECEIPT", 404, *(None,) * 10),
    ],
}
