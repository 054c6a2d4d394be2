"""Cells of the matrix of effects: an effect policy, what befalls the first attempt, and whether its result is recorded.

Each cell is a step of its own with one flow. Its endpoint treats the first attempt as the cell says, and completes
every later one at once. What was sent is counted at the endpoint.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.processes import EngineProcess
from tests.eventually import eventually
from tests.integration.people import approvals, approve
from tests.integration.several_nodes import on, succeed
from tests.wire import Api

REPEATED = ("pure", "idempotent", "dedupe")
HELD = ("reconcile", "unsafe_once")
POLICIES = (*REPEATED, *HELD)
CODES = {"reconcile": "OUTCOME_UNKNOWN", "unsafe_once": "UNSAFE_ONCE_INCOMPLETE"}
NOTICED_MS = 2_000
"""The timeouts of the cells whose fault is a timeout: long enough for a busy machine to complete a later attempt."""
BUSY = {"success": False, "error": "busy", "retriable": True}


@dataclass(frozen=True)
class Fault:
    """What befalls the first attempt, and what the engine knows of it afterwards.

    ``cause`` None: the attempt surely had no effect, or its delivery is certain (``goes_on``).
    """

    name: str
    cause: str | None
    delivery: str
    code: str
    answer: Answer = field(default_factory=Answer)
    work: dict[str, Any] = field(default_factory=dict)
    beats: bool = False
    """Whether the worker sends a heartbeat before the endpoint answers."""
    waits: bool = False
    """Whether the endpoint answers only when the matrix is released."""
    arrives: bool = True
    """Whether the first attempt arrives at the endpoint."""
    goes_on: bool = False
    """Whether the first attempt goes on in spite of the fault, and ends with the worker's report."""


SILENT = Answer(fault="silent")
ACK_TIMEOUT = Fault(
    "ack-timeout", "ack_timeout", "unknown", "UNKNOWN_OUTCOME", SILENT, work={"ack_timeout_ms": NOTICED_MS}
)
CUT = Fault("cut", "connection_lost", "unknown", "UNKNOWN_OUTCOME", Answer(fault="cut"))
CUT_BODY = Fault("cut-body", "connection_lost", "unknown", "UNKNOWN_OUTCOME", Answer(fault="cut_body", body="{}"))
REQUEST_TIMEOUT = Fault("408", "server_error", "delivered", "ENDPOINT_UNAVAILABLE", Answer(status=408))
SERVER_ERROR = Fault("500", "server_error", "delivered", "ENDPOINT_UNAVAILABLE", Answer(status=500))
DEADLINE = Fault("deadline", "deadline_passed", "delivered", "DEADLINE_EXCEEDED", work={"deadline_ms": NOTICED_MS})
SILENCE = Fault(
    "silence",
    "deadline_passed",
    "delivered",
    "DEADLINE_EXCEEDED",
    work={"heartbeat_timeout_ms": NOTICED_MS},
    beats=True,
)
TOO_EARLY = Fault("425", None, "delivered", "ENDPOINT_UNAVAILABLE", Answer(status=425))
TOO_MANY = Fault("429", None, "delivered", "ENDPOINT_UNAVAILABLE", Answer(status=429))
UNAVAILABLE = Fault("503", None, "delivered", "ENDPOINT_UNAVAILABLE", Answer(status=503))
RETRIABLE = Fault("retriable", None, "delivered", "NOT_COMPLETED", Answer(body=BUSY))
REFUSED = Fault(
    "refused",
    None,
    "not_delivered",
    "NOT_DELIVERED",
    work={"max_retries": -1, "backoff_type": "fixed", "init_backoff_ms": 100},
    arrives=False,
)
PATIENT = {"ack_timeout_ms": 120_000}
DONE = Answer(body={"success": True, "outputs": {"attempt": 1}})
NODE_LOST = Fault("node-lost", "node_lost", "unknown", "INTERRUPTED", DONE, PATIENT, waits=True)
LOST_FIRST = replace(NODE_LOST, name="lost-first")
"""The same; a result is reported after the node is lost, at another node, and before the loss is noticed."""
UNSENT = Fault("unsent", "node_lost", "unknown", "INTERRUPTED", work=PATIENT, arrives=False)
"""The node is lost while it waits for a connection: no byte of the request was sent, but no other node knows that."""
TAKEN = Fault("taken", None, "delivered", "", DONE, PATIENT, beats=True, waits=True, goes_on=True)
"""The node is lost after a heartbeat that came before the acknowledgement: a worker has the attempt."""
ACKNOWLEDGED = Fault("acknowledged", None, "delivered", "", goes_on=True)
"""The node is lost after the acknowledgement."""

ANSWERED = (
    ACK_TIMEOUT,
    CUT,
    CUT_BODY,
    REQUEST_TIMEOUT,
    SERVER_ERROR,
    TOO_EARLY,
    TOO_MANY,
    UNAVAILABLE,
    RETRIABLE,
    REFUSED,
)
"""What can befall a sync step as well as an async one."""
CALLBACKS = (DEADLINE, SILENCE)
"""What befalls async steps only."""


@dataclass
class Cell:
    """One cell, and the flow that shows it."""

    policy: str
    fault: Fault
    kind: str = "async"
    recorded: bool = False
    """Whether the worker reports its result before the fault is noticed."""
    flow_id: str = ""

    @property
    def name(self) -> str:
        return f"{self.policy}-{self.fault.name}-{self.kind}{'-recorded' if self.recorded else ''}"

    @property
    def path(self) -> str:
        return f"/{self.name}"

    @property
    def repeats(self) -> bool:
        """Whether the engine sends a second attempt."""
        undecided = not self.recorded and not self.fault.goes_on
        return undecided and (self.policy in REPEATED or self.fault.cause is None)

    @property
    def held(self) -> bool:
        return not self.recorded and not self.fault.goes_on and not self.repeats

    def definition(self) -> dict[str, Any]:
        body: dict[str, Any] = {"kind": self.kind, "effect": {"policy": self.policy}, "work": dict(self.fault.work)}
        if self.policy == "unsafe_once":
            body["control"] = {"approval": {"reason": "look first"}}
        return body


def cells(
    faults: Iterable[Fault], kind: str = "async", *, recorded: bool = False, policies: Iterable[str] = POLICIES
) -> list[Cell]:
    """A cell for each policy and fault; where nothing is delivered, nothing can have been recorded."""
    return [
        Cell(policy, fault, kind, recorded) for fault in faults for policy in policies if fault.arrives or not recorded
    ]


class Matrix:
    """The cells of one test, their endpoint, and what it received."""

    def __init__(self, api: Api, endpoint: StepEndpoint) -> None:
        self.api = api
        self.cells: list[Cell] = []
        self.endpoint = endpoint
        self.released = asyncio.Event()
        self.refusing, self.unheard = Port(), Port()
        self.unheard.let_wait()

    def close(self) -> None:
        self.refusing.close()
        self.unheard.close()

    async def begin(self, chosen: list[Cell]) -> None:
        """Register the steps, start their flows, and give every approval that is asked for."""
        await asyncio.gather(*(self._register(cell) for cell in chosen))
        for cell in chosen:
            cell.flow_id = await self.api.start(cell.name, init={"cell": cell.name})
        self.cells += chosen
        await approve_all(self.api, [cell.flow_id for cell in chosen if cell.policy == "unsafe_once"])

    async def _register(self, cell: Cell) -> None:
        self.endpoint.answer(cell.path, self._work(cell))
        port = self.unheard if cell.fault is UNSENT else self.refusing
        url = self.endpoint.url(cell.path) if cell.fault.arrives else port.url(cell.path)
        await self.api.put_step(cell.name, url, **cell.definition())

    def _work(self, cell: Cell) -> Any:
        async def work(received: Received) -> Answer:
            attempt = received.metadata["attempt"]
            result = {"success": True, "outputs": {"attempt": attempt}}
            later = attempt > 1
            until = self.released if cell.fault.waits else None
            first = replace(cell.fault.answer, until=until)
            if cell.kind == "sync":
                return Answer(body=result) if later else first
            if cell.fault.beats and not later:
                (await self.api.post(on(self.api, received, "/heartbeat"), {})).ok()
            if later or (cell.recorded and cell.fault is not LOST_FIRST):
                await succeed(self.api, received, attempt=attempt)
            return Answer() if later else first

        return work

    def sent(self, cell: Cell) -> list[Received]:
        return self.endpoint.requests(cell.path)

    async def uncertain(self, chosen: Iterable[Cell]) -> None:
        """Wait until the first attempt of each of these is where a crash leaves its outcome unknown, or recorded."""
        for cell in chosen:
            await self.api.until_event(cell.flow_id, "work_dispatched")
            if cell.fault.arrives:
                await self.endpoint.received(cell.path)
            if cell.recorded and cell.fault is not LOST_FIRST:
                await self.api.until_work(cell.flow_id, "succeeded")
            elif cell.fault is TAKEN:
                await self.api.until_event(cell.flow_id, "work_heartbeat")
            elif cell.fault is ACKNOWLEDGED:
                await self.api.until_acknowledged(cell.flow_id)

    async def report_before_the_loss_is_noticed(self) -> None:
        first = [self.sent(cell)[0] for cell in self.cells if cell.fault is LOST_FIRST]
        await asyncio.gather(*(succeed(self.api, received, attempt=1) for received in first))

    async def settled(self) -> None:
        """Wait until every cell is where the engine leaves it: ended, held, or still with its worker."""
        for cell in self.cells:
            if cell.held:
                await self.api.until_work(cell.flow_id, "not_completed", hold=cell.policy)
            elif not cell.fault.goes_on:
                await self._completed(cell)
        for cell in self.cells:
            if cell.fault.goes_on and not cell.recorded:
                work = await self.work_of(cell)
                assert (work["status"], work["attempt"], work["hold"]) == ("active", 1, None), (cell.name, work)
                await succeed(self.api, self.sent(cell)[0], attempt=1)
                await self._completed(cell)

    async def _completed(self, cell: Cell) -> None:
        final = await self.api.final(cell.flow_id, wait="20")
        assert final["status"] == "completed", (cell.name, final)
        if cell.fault is not REFUSED:
            assert final["outputs"] == {"attempt": 2 if cell.repeats else 1}, (cell.name, final)

    async def check(self) -> None:
        """Compare every cell with the table."""
        queue = {entry["work_id"]: entry for entry in await reconciliations(self.api)}
        keys = {}
        documents = await asyncio.gather(*map(self.work_of, self.cells))
        for cell, work in zip(self.cells, documents, strict=True):
            keys[cell.name] = work["idempotency_key"]
            self._check_sent(cell, work)
            check_attempts(cell, work)
            if cell.held:
                check_held(cell, work, queue.pop(work["work_id"]))
            else:
                assert work["work_id"] not in queue, cell.name
                assert (work["status"], work["hold"]) == ("succeeded", None), (cell.name, work)
        assert len(set(keys.values())) == len(keys), "every cell has a key of its own"
        assert queue == {}, "nothing else is in the queue"

    def _check_sent(self, cell: Cell, work: dict[str, Any]) -> None:
        sent = self.sent(cell)
        attempts = [received.metadata["attempt"] for received in sent]
        first, later = [1] if cell.fault.arrives else [], [work["attempt"]] if cell.repeats else []
        assert attempts == first + later, (cell.name, attempts)
        assert work["attempt"] == (2 if cell.repeats else 1) or cell.fault is REFUSED, (cell.name, work)
        for received in sent:
            found = {received.headers["Idempotency-Key"], received.metadata["idempotency_key"]}
            assert found == {work["idempotency_key"]}, cell.name

    async def work_of(self, cell: Cell) -> dict[str, Any]:
        work_id = (await self.api.work(cell.flow_id))["work_id"]
        document: dict[str, Any] = (await self.api.get(f"/api/v1/work/{work_id}")).ok()
        return document

    async def settle_late(self) -> None:
        """Late webhooks settle async items of the queue; reconcilers settle sync ones."""
        for cell in self.cells:
            if not cell.held:
                continue
            if cell.kind == "async" and self.sent(cell):
                await succeed(self.api, self.sent(cell)[0], late=True)
            else:
                work_id = (await self.api.work(cell.flow_id))["work_id"]
                body = {"outcome": "applied", "outputs": {"late": True}}
                assert (await self.api.post(f"/api/v1/reconciliations/{work_id}", body)).ok()["status"] == "succeeded"
            final = await self.api.final(cell.flow_id)
            assert (final["status"], final["outputs"]) == ("completed", {"late": True}), cell.name
        assert await reconciliations(self.api) == []


def check_attempts(cell: Cell, work: dict[str, Any]) -> None:
    """What the engine shows of each attempt: delivery, cause, times and outcome."""
    attempts = work["attempts"]
    assert [each["attempt"] for each in attempts] == list(range(1, work["attempt"] + 1)), cell.name
    first = attempts[0]
    assert (first["approved_at"] is not None) == (cell.policy == "unsafe_once"), cell.name
    assert first["planned_at"] <= (first["approved_at"] or first["started_at"]) <= first["started_at"], cell.name
    if cell.recorded or cell.fault.goes_on:
        assert (first["outcome"], first["delivery"], first["cause"]) == ("succeeded", "delivered", None), cell.name
        return
    shown = (first["outcome"], first["delivery"], first["cause"], first["error"]["code"])
    code = CODES[cell.policy] if cell.held else cell.fault.code
    assert shown == ("not_completed", cell.fault.delivery, cell.fault.cause, code), cell.name
    if cell.repeats:
        last = attempts[-1]
        assert (last["outcome"], last["delivery"], last["cause"]) == ("succeeded", "delivered", None), cell.name
        assert last["approved_at"] is None, "an attempt without an effect does not use up its approval"


def check_held(cell: Cell, work: dict[str, Any], entry: dict[str, Any]) -> None:
    """A held item has the typed error and its place in the queue."""
    shown = (work["status"], work["hold"], work["next_attempt_at"], work["error"]["code"])
    assert shown == ("not_completed", cell.policy, None, CODES[cell.policy]), cell.name
    key = work["idempotency_key"]
    assert work["error"]["details"] == {"cause": cell.fault.cause, "attempt": 1, "idempotency_key": key}, cell.name
    wanted = {
        "flow_id": cell.flow_id,
        "step_id": cell.name,
        "hold": cell.policy,
        "cause": cell.fault.cause,
        "attempt": 1,
        "idempotency_key": key,
        "arguments": {"cell": cell.name},
        "status_url": None,
        "last_probe": None,
    }
    assert {name: entry[name] for name in wanted} == wanted, cell.name


class Port:
    """A port that refuses connections until it is opened: then its requests go on to an endpoint."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._first_in_line: socket.socket | None = None
        self._server: asyncio.Server | None = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}{path}"

    def let_wait(self) -> None:
        """Let connections wait behind a full queue instead: what is to be sent over them is not sent."""
        self._socket.listen(0)
        self._first_in_line = socket.create_connection(self._socket.getsockname())

    async def open(self, endpoint: StepEndpoint) -> None:
        """Accept connections from now on, and pass every one on to the endpoint."""
        self._leave()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            away_reader, away_writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            await asyncio.gather(_copy(reader, away_writer), _copy(away_reader, writer))

        self._server = await asyncio.start_server(relay, sock=self._socket)

    def close(self) -> None:
        self._leave()
        if self._server is not None:
            self._server.close()
        self._socket.close()

    def _leave(self) -> None:
        if self._first_in_line is not None:
            self._first_in_line.close()
            self._first_in_line = None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def approve_all(api: Api, flows: Iterable[str]) -> None:
    """Give one approval to each of these flows; fails if one of them asks for more than one."""
    for flow_id in flows:

        async def look(flow_id: str = flow_id) -> list[dict[str, Any]]:
            return await approvals(api, status="pending", flow_id=flow_id)

        [question] = await eventually(look, what="a pending approval")
        (await approve(api, question["approval_id"])).ok()


async def reconciliations(api: Api, **filters: str) -> list[dict[str, Any]]:
    """The whole queue, over all pages."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await api.get("/api/v1/reconciliations", **filters, **cursor)).ok()
        found += page["reconciliations"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


def doctor_is_content(engine: EngineProcess) -> None:
    """The database keeps every promise, also that which a kill left behind."""
    findings = run_doctor(Settings(data=engine.data, store=engine.store_url))
    assert not findings, findings


def errors_logged(engine: EngineProcess) -> list[str]:
    """Lines that an engine never logs, however its workers behave."""
    lines = engine.log.read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith("Traceback") or _is_error(line)]


def _is_error(line: str) -> bool:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:  # not an entry, or one that a kill cut short
        return False
    return "exception" in entry or entry.get("level") in ("error", "critical")
