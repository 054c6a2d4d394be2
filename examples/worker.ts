// A complete worker in TypeScript, with the standard library of Node.js only.
//
//     node examples/worker.ts
//
// This needs Node 22.18 or newer: the types are only removed, so no compiler is needed. For an older Node, see
// docs/how-to/write-a-worker-in-other-languages.md.
//
// It serves the same step as worker.py: POST /thumbnail. Environment: PORT (9000), HEARTBEAT_SECONDS (5), and
// COUNTERFOIL_SIGNING_SECRET (whsec_...): if it is set, dispatches must be signed, and reports are signed too.

import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingHttpHeaders, type IncomingMessage } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const port = Number(process.env.PORT || 9000);
const heartbeatMs = Number(process.env.HEARTBEAT_SECONDS || 5) * 1000;
const secret = process.env.COUNTERFOIL_SIGNING_SECRET || "";
const signingKey = Buffer.from(secret.slice("whsec_".length), "base64");

const MAX_BODY_BYTES = 16 * 1024 * 1024;
const TOLERANCE_SECONDS = 300; // how old, or how far ahead, the timestamp of a signature may be
const TRIES = 10; // deliveries of one report, over about two minutes
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 30_000;
const LONGEST_RETRY_AFTER_MS = 3_600_000;
const REMEMBERED_RESULTS = 1000;

interface Work {
  arguments: Record<string, unknown>;
  metadata: {
    flow_id: string;
    step_id: string;
    receipt_token: string;
    webhook_url: string;
    heartbeat_url: string;
    attempt: number;
    idempotency_key: string; // the same in every attempt: pass it to the APIs that the work calls
  };
  progress?: number;
}

type Result =
  | { success: true; outputs: Record<string, unknown> }
  | { success: false; error: string; retriable?: boolean; retry_after?: number };

// ---------------------------------------------------------------------------------------------- the work itself

/** Does the work. `cancelled` is aborted when the engine no longer needs the result. */
async function thumbnail(work: Work, cancelled: AbortSignal): Promise<Result> {
  const { image, busy, seconds } = work.arguments;
  if (typeof image !== "string") {
    return { success: false, error: "there is no image to make smaller" }; // permanent: a retry would not help
  }
  if (busy && work.metadata.attempt === 1) {
    return { success: false, error: "the renderer is busy", retriable: true, retry_after: 1 };
  }
  for (let part = 1; part <= 4; part++) {
    await sleep((Number(seconds ?? 2) * 1000) / 4, undefined, { signal: cancelled }); // stands for the long work
    work.progress = part / 4;
  }
  return { success: true, outputs: { thumbnail: `small-${image}` } };
}

// ---------------------------------------------------------------------------------------------- one work item

const running = new Map<string, Work>(); // by receipt
const results = new Map<string, Result>(); // by receipt, the newest ones: a production worker keeps them on disk

/** Starts the work, unless it is running: the same work may be dispatched more than once. */
function accept(work: Work): void {
  const receipt = work.metadata.receipt_token;
  const known = running.get(receipt);
  if (known) {
    known.metadata = work.metadata; // the report will carry the newest attempt
    log(work, "already running");
    return;
  }
  running.set(receipt, work);
  void handle(work).finally(() => running.delete(receipt));
}

/** Runs the work and reports its result. A result that is known already is only reported again. */
async function handle(work: Work): Promise<void> {
  const receipt = work.metadata.receipt_token;
  let attempt: number;
  do {
    const result = results.get(receipt) ?? (await runWithHeartbeats(work));
    if (result === null) return log(work, "cancelled");
    if (result.success || !result.retriable) {
      results.set(receipt, result);
      if (results.size > REMEMBERED_RESULTS) results.delete(results.keys().next().value!);
    }
    attempt = work.metadata.attempt;
    await report(work, result);
  } while (work.metadata.attempt > attempt); // a newer attempt arrived before the answer to the report
}

/** Runs the work, with heartbeats beside it; null if it was cancelled. */
async function runWithHeartbeats(work: Work): Promise<Result | null> {
  log(work, "started");
  const cancelled = new AbortController();
  const finished = new AbortController();
  void (async () => {
    while (await sleep(heartbeatMs, true, { signal: finished.signal }).catch(() => false)) {
      if (!(await isWanted(work, finished.signal))) cancelled.abort();
    }
  })();
  try {
    return await thumbnail(work, cancelled.signal);
  } catch (error) {
    if (cancelled.signal.aborted) return null;
    return { success: false, error: String(error), retriable: true }; // unexpected: let the engine try again
  } finally {
    finished.abort();
  }
}

/** Sends a heartbeat, which extends the deadline. A lost one does no harm: the next one follows soon. */
async function isWanted(work: Work, finished: AbortSignal): Promise<boolean> {
  try {
    const response = await post(work.metadata.heartbeat_url, JSON.stringify({ progress: work.progress }), finished);
    const answer = await json(response);
    if (response.status === 200) return answer.cancel_requested !== true;
    log(work, `heartbeat refused: ${code(response, answer)}`);
    return response.status !== 400 && response.status !== 404; // these two: the work has ended, or is unknown
  } catch (error) {
    if (!finished.aborted) log(work, `heartbeat lost: ${reason(error)}`);
    return true;
  }
}

// ---------------------------------------------------------------------------------------------- reporting

/** Delivers the same result until the engine gives a final answer. */
async function report(work: Work, result: Result): Promise<void> {
  const body = JSON.stringify({ ...result, attempt: work.metadata.attempt });
  for (let delivery = 1; delivery <= TRIES; delivery++) {
    let retryAfter = 0;
    try {
      const response = await post(work.metadata.webhook_url, body);
      const answer = await json(response);
      if (response.status === 200) return log(work, `reported: ${answer.verdict}`);
      const temporary = response.status >= 500 || [408, 425, 429].includes(response.status);
      if (!temporary) {
        log(work, `report refused: ${code(response, answer)}`);
        if ([413, 422].includes(response.status) && result.success) {
          // The engine cannot take these outputs. A failed flow is better than one that waits for its deadline.
          await report(work, { success: false, error: `the result was refused: ${code(response, answer)}` });
        }
        return;
      }
      retryAfter = retryAfterMs(response);
      log(work, `delivery ${delivery} failed: ${code(response, answer)}`);
    } catch (error) {
      log(work, `delivery ${delivery} failed: ${reason(error)}`);
    }
    if (delivery < TRIES) await sleep(Math.max(pauseMs(delivery), retryAfter));
  }
  log(work, "not reported: the engine dispatches the work again when its deadline has passed");
}

/** The pause doubles; between half and all of it is used, so that many workers do not retry at the same moment. */
function pauseMs(failures: number): number {
  const full = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (failures - 1));
  return full / 2 + Math.random() * (full / 2);
}

/** `Retry-After` is a number of seconds or a date. */
function retryAfterMs(response: Response): number {
  const text = response.headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - Date.now();
  return Math.min(ms || 0, LONGEST_RETRY_AFTER_MS);
}

/** Each delivery gets its own signature, because a signature is accepted for five minutes only. */
function post(url: string, body: string, stop?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (secret) {
    const id = `msg_${randomUUID()}`;
    const timestamp = String(Math.floor(Date.now() / 1000));
    headers["webhook-id"] = id;
    headers["webhook-timestamp"] = timestamp;
    headers["webhook-signature"] = sign(id, timestamp, Buffer.from(body));
  }
  const timeout = AbortSignal.timeout(10_000);
  const signal = stop ? AbortSignal.any([timeout, stop]) : timeout;
  return fetch(url, { method: "POST", headers, body, redirect: "manual", signal });
}

async function json(response: Response): Promise<Record<string, any>> {
  const text = await response.text();
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {}; // not from the engine: a proxy's error page
  }
}

function code(response: Response, answer: Record<string, any>): string {
  return answer.error?.code ?? `HTTP ${response.status}`;
}

// ---------------------------------------------------------------------------------------------- signatures

/** Standard Webhooks: HMAC-SHA256 over `<id>.<timestamp>.<body>`. */
function sign(id: string, timestamp: string, body: Buffer): string {
  return "v1," + createHmac("sha256", signingKey).update(`${id}.${timestamp}.`).update(body).digest("base64");
}

/** Checks the signature over the bytes as received. The header may hold several, while a secret is replaced. */
function isAuthentic(headers: IncomingHttpHeaders, body: Buffer): boolean {
  const [id, timestamp, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map((name) =>
    String(headers[name] ?? ""),
  );
  if (!id || !/^\d{1,12}$/.test(timestamp)) return false;
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_SECONDS) return false;
  const expected = Buffer.from(sign(id, timestamp, body));
  return signatures.split(" ").some((text) => {
    const given = Buffer.from(text);
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}

// ---------------------------------------------------------------------------------------------- the server

/** The status and the JSON with which a request is answered. Work is only started here, never awaited. */
async function respond(request: IncomingMessage): Promise<[number, object]> {
  if (request.url !== "/thumbnail") return [404, { error: "there is no such step" }];
  if (request.method !== "POST") return [405, { error: "use POST" }];
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size <= MAX_BODY_BYTES) chunks.push(chunk);
  }
  if (size > MAX_BODY_BYTES) return [413, { error: "the body is too large" }];
  const body = Buffer.concat(chunks);
  if (secret && !isAuthentic(request.headers, body)) return [401, { error: "the signature is missing or wrong" }];
  let work: Work;
  try {
    work = JSON.parse(body.toString());
  } catch {
    return [400, { error: "the body is not JSON" }];
  }
  if (!work?.metadata?.webhook_url || !work.metadata.receipt_token || !work.arguments) {
    return [400, { error: "this is not a dispatch of an async step" }];
  }
  accept(work);
  return [200, { success: true }];
}

const server = createServer((request, response) => {
  const send = ([status, answer]: [number, object]) =>
    response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer));
  respond(request).then(send, () => response.destroy()); // destroyed: the connection was lost during the body
});

/** Logs what happened to a work item. The receipt and the URLs that contain it are never logged. */
function log(work: Work, text: string): void {
  const { flow_id, step_id, attempt } = work.metadata;
  console.log(`flow ${flow_id}, step ${step_id}, attempt ${attempt}: ${text}`);
}

/** Why there was no answer. The cause of a failed fetch has a code such as ECONNREFUSED. */
function reason(error: any): string {
  return error?.cause?.code ?? error?.name ?? "no answer";
}

function refuse(reason: string): never {
  console.error(reason);
  process.exit(1);
}

if (!(heartbeatMs > 0)) refuse("HEARTBEAT_SECONDS must be a positive number");
if (secret && !/^whsec_[A-Za-z0-9+/]+={0,2}$/.test(secret)) {
  refuse("COUNTERFOIL_SIGNING_SECRET must be whsec_ followed by base64");
}

// A signal stops the server. Node ends by itself when the running work has been reported.
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => {
    console.log(`stopping: ${running.size} running`);
    server.close();
  });
}
server.listen(port, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${port}`));
