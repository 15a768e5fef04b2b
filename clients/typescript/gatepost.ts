// Gatepost for TypeScript and JavaScript: one file, no dependencies. Node 20 or newer, and browsers.
//
// Copy `gatepost.ts` into a TypeScript project, or `gatepost.js` (and `gatepost.d.ts` for its types)
// into any other. `gatepost.js` is made from `gatepost.ts`: change only that.
//
//   import { connect } from "./gatepost.js";
//   const client = await connect("alice");
//   console.log(await client.request("bob", "hello"));
//
// All calls are HTTP requests, and mail is waited for by long polling: a WebSocket of the web
// platform cannot carry the token, and Node has none before version 22. Every call has a deadline.
// Until then it is repeated when the gateway cannot be reached; that is safe, because each message,
// task and settlement carries an id that this file chose, so the gateway does it once.
//
// SPDX-License-Identifier: Apache-2.0

// -- types of the wire, from the OpenAPI document: scripts/docs writes them

export interface Enqueue {
  op: "enqueue";
  messages: NewMessage[];
  id?: number;
}

/** A message from a sender.
 *
 * The mailbox protocol requires unknown fields of a message to be ignored, so a message with any
 * is decoded again without them. `attempt` and `protocol_version` are for diagnostics.
 */
export interface NewMessage {
  from: string;
  to: string;
  payload: unknown;
  msg_id: string;
  created_at?: number;
  attempt?: number;
  ttl_secs?: number;
  order?: "fifo" | "none";
  not_before?: number;
  max_retries?: number;
  protocol_version?: string;
}

export interface Dequeue {
  op: "dequeue";
  mailbox: string;
  limit?: number;
  wait_secs?: number;
  consumer?: string;
  id?: number;
}

/** Settle messages, named by `receipts` (lease handles) or `msg_ids`.
 *
 * `replies` maps a lease handle to the answer for its sender, `reply_refs` to the digest of an
 * uploaded blob that holds the answer.
 */
export interface Ack {
  op: "ack";
  mailbox: string;
  receipts?: string[];
  msg_ids?: string[];
  replies?: Record<string, unknown>;
  reply_refs?: Record<string, string>;
  id?: number;
}

/** Fail turns. Without `retry` the messages are dead letters at once. */
export interface Nack {
  op: "nack";
  mailbox: string;
  receipts?: string[];
  msg_ids?: string[];
  reason?: string;
  retry?: boolean;
  id?: number;
}

/** Extend the leases of these lease handles, because the consumer is still working. */
export interface Extend {
  op: "extend";
  mailbox: string;
  receipts: string[];
  id?: number;
}

export interface Peek {
  op: "peek";
  mailbox: string;
  limit?: number;
  after?: string;
  id?: number;
}

export interface Purge {
  op: "purge";
  mailbox: string;
  id?: number;
}

export interface PeekDeadLetter {
  op: "peek_dead_letter";
  mailbox: string;
  limit?: number;
  after?: string;
  id?: number;
}

export interface PurgeDeadLetter {
  op: "purge_dead_letter";
  mailbox: string;
  id?: number;
}

export interface Send {
  op: "send";
  messages: NewSend[];
  id?: number;
}

/** A message for another agent, tracked until its turn has ended.
 *
 * `to_agents` instead of `to_agent` sends a copy to each of them, or with "*" to every agent but
 * the sender. `replies` says where an answer goes: to the sender's `mailbox`, or to the waiting
 * `caller`. Without `order` the mailbox decides. The turn begins at `not_before` or later, by the
 * clock of the gateway that the agent lives behind. `subject` says in clear what it is about.
 */
export interface NewSend {
  from_agent: string;
  to_agent?: string;
  payload?: unknown;
  payload_ref?: string;
  event_id?: string;
  corr_id?: string;
  idempotency_key?: string;
  ttl_secs?: number;
  traceparent?: string;
  replies?: "caller" | "mailbox";
  priority?: number;
  to_agents?: string[] | "*";
  order?: "fifo" | "none";
  not_before?: number;
  max_retries?: number;
  subject?: string;
}

/** Wait until the message is accepted or processed, for at most `wait_secs`. */
export interface Await {
  op: "await";
  event_id: string;
  wait_secs?: number;
  until?: "accepted" | "processed";
  id?: number;
}

/** Register an agent here. `standby`: another gateway owns it, and this one can stand in.
 *
 * `role` is for people, and `order` is the default order of its mail. With `takes_skills` it is
 * asked to install delegation skills. `executor_skills` are those that it hosts. Fields that are
 * not given change nothing.
 */
export interface Register {
  op: "register";
  agent: string;
  standby?: boolean;
  role?: "coordinator" | "maintenance" | "worker" | null;
  order?: "fifo" | "none" | null;
  takes_skills?: boolean | null;
  executor_skills?: StatedSkill[] | null;
  id?: number;
}

/** An executor skill that an agent hosts: its id or path, and its version. */
export interface StatedSkill {
  ref: string;
  version: string;
}

export interface TaskCreate {
  op: "task_create";
  tasks: NewTask[];
  id?: number;
}

/** A task for agents by name, or for one agent that has all the required capabilities.
 *
 * The input is JSON: inline, or a blob that was uploaded before. A task fails if no agent accepts
 * it within `ttl_secs`. A task that `may_wait` is taken although the gateway of its capability is
 * offline.
 */
export interface NewTask {
  from_agent: string;
  description?: string;
  to_agents?: string[];
  required_capabilities?: string[];
  input?: unknown;
  input_ref?: string;
  task_id?: string;
  idempotency_key?: string;
  task_type?: string;
  ttl_secs?: number;
  traceparent?: string;
  may_wait?: boolean;
}

export interface TaskReports {
  op: "task_report";
  reports: TaskReport[];
  id?: number;
}

/** A report of an executor. `receipt` is the lease handle of the mail that brought the task.
 *
 * `accept` may state an ETA and begins the work. `complete` has a result, inline or as a blob
 * that was uploaded before; `fail` has a code and a sentence.
 */
export interface TaskReport {
  task_id: string;
  agent: string;
  action: "accept" | "complete" | "fail" | "update";
  receipt?: string;
  eta_secs?: number;
  progress?: number;
  note?: string;
  result?: unknown;
  result_ref?: string;
  error_code?: string;
  error?: string;
}

/** Wait for the end of a task, or with `known` for a change after that moment. */
export interface TaskAwait {
  op: "task_await";
  task_id: string;
  wait_secs?: number;
  known?: number;
  id?: number;
}

export interface TaskCancel {
  op: "task_cancel";
  task_id: string;
  reason?: string;
  id?: number;
}

export interface Enqueued {
  op: "enqueued";
  results: EnqueueAck[];
  re?: number;
}

/** `queued` is false for a msg_id seen before, and for a message refused with `error`. */
export interface EnqueueAck {
  msg_id: string;
  queued: boolean;
  pending: number;
  error?: Failure | null;
}

/** An error on the wire. In a batch, `subject` is the msg_id or lease handle it is about. */
export interface Failure {
  code: string;
  message: string;
  subject?: string;
  retry_after?: number | null;
}

export interface Messages {
  op: "messages";
  messages: LeasedMessage[];
  re?: number;
}

/** A message for a consumer. `receipt` is its lease handle.
 *
 * `event` is set when the message came through `send`.
 */
export interface LeasedMessage {
  msg_id: string;
  from: string;
  to: string;
  payload: unknown;
  created_at: number;
  attempt: number;
  receipt: string;
  lease_secs?: number;
  event?: EventInfo;
  order?: "fifo" | "none";
}

/** The event behind mail that came through `send`.
 *
 * `origin_event_id` is the event that its sender emitted, if this one was forwarded in its stead;
 * `origin_node` is that event's gateway, if it is neither this one nor `source_node`. `task_id` is
 * the id that the requester of a task knows, if this event has another one.
 */
export interface EventInfo {
  event_id: string;
  kind: string;
  corr_id: string;
  ref_event_id?: string | null;
  traceparent?: string | null;
  payload_ref?: string | null;
  size?: number | null;
  source_node?: string | null;
  priority?: number;
  origin_event_id?: string | null;
  origin_node?: string | null;
  order?: "fifo" | "none" | null;
  not_before?: number | null;
  max_retries?: number | null;
  task_id?: string | null;
  subject?: string | null;
}

export interface Settled {
  op: "settled";
  settled: number;
  failures?: Failure[];
  re?: number;
}

export interface Summaries {
  op: "summaries";
  messages: Summary[];
  re?: number;
}

export interface Summary {
  msg_id: string;
  from: string;
  created_at: number;
  attempt: number;
  state: string;
  size: number;
  not_before?: number | null;
  order?: "fifo" | "none";
  subject?: string | null;
}

export interface DeadLetters {
  op: "deadletters";
  messages: DeadLetter[];
  re?: number;
}

export interface DeadLetter {
  msg_id: string;
  from: string;
  to: string;
  created_at: number;
  attempt: number;
  reason: string;
  failed_at: number;
  attempts: number;
  payload?: unknown;
  replayed_as?: string | null;
  order?: "fifo" | "none";
  max_retries?: number | null;
  subject?: string | null;
}

export interface Count {
  op: "count";
  count: number;
  re?: number;
}

export interface SendResults {
  op: "sent";
  results: Sent[];
  re?: number;
}

/** The state of one message at its sender's gateway; `error` if it was not sent.
 *
 * A message for several agents has one entry per agent in `copies`, each with its own `to_agent`
 * and `event_id`; all of them share the `corr_id`. `sent_at` is the time of the send. For a
 * message that was given up, `verdict` is the last known answer of its owner. A later receipt, at
 * `verdict_at`, amends it: if the turn ended after all, that is the message's end. A reply too
 * large to travel inline is the blob `reply_ref` at this gateway, of `reply_size` bytes.
 */
export interface Sent {
  event_id: string;
  corr_id?: string;
  state?: string;
  node?: string | null;
  outcome?: string | null;
  reason?: string | null;
  accepted_at?: number | null;
  processed_at?: number | null;
  reply?: unknown;
  error?: Failure | null;
  to_agent?: string;
  sent_at?: number | null;
  verdict?: string | null;
  verdict_at?: number | null;
  copies?: Sent[];
  reply_ref?: string | null;
  reply_size?: number | null;
}

export interface Awaited {
  op: "awaited";
  result: Sent;
  re?: number;
}

export interface TasksCreated {
  op: "tasks_created";
  results: CreatedTask[];
  re?: number;
}

/** The tasks one request made: one for each agent; or the code and sentence of its refusal. */
export interface CreatedTask {
  tasks?: TaskView[];
  code?: string;
  error?: string;
  retry_after?: number | null;
}

/** A task. `status` has the hub's names, `state` is exact.
 *
 * A task in the state `unknown` waits until `unknown_until` for a report of `executor_node`. Such
 * a report can amend an end that `is_presumed`; `amended_at` is when it did.
 *
 * Times are epoch milliseconds. A node is left out if it is this gateway.
 */
export interface TaskView {
  id: string;
  agent_name: string;
  status: string;
  state: string;
  requester: string;
  description?: string;
  requester_node?: string | null;
  executor_node?: string | null;
  task_type?: string;
  capability_id?: string | null;
  progress?: number | null;
  note?: string | null;
  eta_at?: number | null;
  input?: unknown;
  input_ref?: string | null;
  result?: unknown;
  result_ref?: string | null;
  error_code?: string | null;
  error?: string | null;
  token_id?: string | null;
  session_name?: string | null;
  session_state?: string | null;
  created_at?: number;
  accepted_at?: number | null;
  started_at?: number | null;
  updated_at?: number;
  ended_at?: number | null;
  attempt?: number;
  unknown_until?: number | null;
  is_presumed?: boolean;
  amended_at?: number | null;
}

export interface TasksReported {
  op: "tasks_reported";
  refused?: RefusedReport[];
  re?: number;
}

/** A report that changed nothing, or a result that failed its task because it does not fit.
 *
 * `index` is its place in the operation.
 */
export interface RefusedReport {
  index: number;
  code: string;
  error: string;
}

export interface TaskAwaited {
  op: "task_awaited";
  task: TaskView;
  re?: number;
}

/** An agent is registered here. `problem` says why its mail goes elsewhere, and what to do. */
export interface Registered {
  op: "registered";
  problem?: string;
  re?: number;
}

export interface Done {
  op: "done";
  re?: number;
}

export interface Failed {
  op: "failed";
  error: Failure;
  re?: number;
}

/** A gateway at a glance. `problem` says why it is not `accepting`.
 *
 * `dead_letters_open` were not sent again. `runs_as_root` is a risk, because a fault of the
 * gateway then affects the whole machine. `answered_late` counts undelivered messages of which a
 * receipt came after they were given up. `mesh_problems`: what an operator has to do about the
 * mesh, a sentence each. `health` is `online` or `degraded`, and `health_problems` has the
 * reasons.
 */
export interface Status {
  node_id: string;
  version: string;
  pid: number;
  accepting: boolean;
  problem: string | null;
  agents: number;
  waiting: number;
  in_flight: number;
  dead_letters: number;
  outbox_seq: number;
  journal_bytes: number;
  deliveries_open?: number;
  undelivered?: number;
  answered_late?: number;
  links?: string[];
  incidents?: Record<string, number>;
  reviews_open?: number;
  peers?: PeerStatus[];
  mesh_problems?: string[];
  runs_as_root?: boolean;
  health?: string;
  health_problems?: string[];
  dead_letters_open?: number;
}

/** How a gateway stands with another one. Times are epoch milliseconds.
 *
 * `state` describes it in words, with reason and age; the other fields are for programs. `linked`:
 * there is a link; else `relay` names the relay that brings its outbox, if one does. `waiting`
 * messages have no receipt from it yet, the oldest since `waiting_since`, for the reason `why`;
 * `accepted` ones are not processed yet. `problem` is the reason for a missing link.
 */
export interface PeerStatus {
  id: string;
  status: string;
  linked: boolean;
  relay: string | null;
  last_heard_at: number | null;
  waiting?: number;
  waiting_since?: number | null;
  accepted?: number;
  why?: string;
  problem?: string;
  state?: string;
}

/** A payload stored as a blob. */
export interface StoredBlob {
  digest: string;
  size: number;
}

/** Times are epoch milliseconds. */
export interface AgentTokens {
  accessToken: string;
  accessExpiresAt: number;
  refreshToken: string;
  refreshExpiresAt: number;
  sessionId: string;
  agentId: string;
  scopes: string[];
}

export type Operation =
  | Enqueue
  | Dequeue
  | Ack
  | Nack
  | Extend
  | Peek
  | Purge
  | PeekDeadLetter
  | PurgeDeadLetter
  | Send
  | Await
  | Register
  | TaskCreate
  | TaskReports
  | TaskAwait
  | TaskCancel;

export type Answer =
  | Enqueued
  | Messages
  | Settled
  | Summaries
  | DeadLetters
  | Count
  | SendResults
  | Awaited
  | TasksCreated
  | TasksReported
  | TaskAwaited
  | Registered
  | Done
  | Failed;

// -- end of the types of the wire

/** A gateway's address and the token to use now. Never log it. */
export interface Target {
  url: string;
  token: string;
  /** Called when the gateway says that the token has expired. */
  expireToken?: () => Promise<void>;
}

/** Finds the gateway anew for each request: its port or the session's token may have changed. */
export type Locate = () => Promise<Target>;

/** Where the session of an external agent is kept. It starts as the invite. */
export interface SessionStore {
  load(): Promise<string>;
  save(text: string): Promise<void>;
}

export type WaitGoal = "accepted" | "processed";

export interface CallOptions {
  /** Seconds until the call fails with `deadline_exceeded`. Default: 30. */
  timeoutSecs?: number;
}

export interface SendOptions extends CallOptions {
  /** The sender, if it is not the client's own name. */
  from?: string;
  /** Wait until the receiver's gateway has the message, or until the turn has ended. */
  wait?: WaitGoal;
  idempotencyKey?: string;
  corrId?: string;
  ttlSecs?: number;
  priority?: number;
  order?: "fifo" | "none";
  /** Unix seconds. */
  notBefore?: number;
  maxRetries?: number;
  traceparent?: string;
}

export interface TaskOptions extends CallOptions {
  from?: string;
  to?: string | string[];
  capabilities?: string[];
  input?: unknown;
  taskType?: string;
  ttlSecs?: number;
  idempotencyKey?: string;
  mayWait?: boolean;
}

export interface ReceiveOptions extends CallOptions {
  /** Default: the client's own name. */
  mailbox?: string;
  limit?: number;
  /** Seconds to wait for the first message. Default: 0. */
  waitSecs?: number;
  /** The same consumer gets the messages that it still holds again. Default: a new one. */
  consumer?: string;
  signal?: AbortSignal;
}

export interface ServeOptions {
  /** The return value is the reply. If it throws, the turn fails and is retried; see `Reject`. */
  onMessage?: (message: Message) => unknown;
  /** The return value is the result. If it throws, the task fails. */
  onTask?: (task: Task) => unknown;
  /** Turns at a time. Messages of one sender stay in order. Default: 4. */
  concurrency?: number;
  /** Stops `serve`: it takes no more mail, and resolves when the running turns have ended. */
  signal?: AbortSignal;
  /** `none`: the mailbox is a work queue. */
  order?: "fifo" | "none";
  /** Hears of failed turns and of a gateway that is away. Default: `console.error`. */
  onProblem?: (problem: string) => void;
}

/** An error of a gateway, or of the way to it. `code` is stable, `message` says what to do. */
export class GatepostError extends Error {
  readonly code: string;
  /** The HTTP status; 0 if no gateway answered. */
  readonly status: number;
  readonly retryAfter: number | undefined;

  constructor(code: string, message: string, status = 0, retryAfter?: number) {
    super(message);
    this.name = "GatepostError";
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Throw this in a handler to refuse a message or task for good: it is not delivered again. */
export class Reject extends Error {}

const DEFAULT_TIMEOUT_SECS = 30;
// One request may take so long, apart from the wait that it asks for.
const ATTEMPT_MS = 10_000;
const FIRST_DELAY_MS = 50;
const LONGEST_DELAY_MS = 2_000;
const MAX_ANSWER_BYTES = 128 * 1024 * 1024;
const MAX_INLINE_BYTES = 512 * 1024;
const MAX_WAIT_SECS = 20;
const TASK_BEAT_MS = 5_000;
// Refresh early enough that work started with the token can finish.
const RENEW_MARGIN_MS = 120_000;
const INVITE_PREFIX = "gpa1.";
const SESSION_PREFIXES = ["gps1.", "gpc1."];
// The task has ended in another way: nothing that is said about it counts any more.
const TASK_HAS_ENDED = ["wrong_state", "unknown_task", "forbidden", "idempotency_conflict"];
const SECRETS =
  /(bearer\s+|(?:authorization|token|password|secret|api[_-]?key)["']?\s*[:=]\s*["']?|gp[a-z]?1\.[^.\s]+\.)(?!bearer)[^\s"',;]+/gi;
const TLS_ADVICE: Record<string, string> = {
  DEPTH_ZERO_SELF_SIGNED_CERT:
    "name a copy of the gateway's tls.crt in NODE_EXTRA_CA_CERTS before Node starts",
  SELF_SIGNED_CERT_IN_CHAIN:
    "name the authority's certificate in NODE_EXTRA_CA_CERTS before Node starts",
  UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    "name the authority's certificate in NODE_EXTRA_CA_CERTS before Node starts",
};

// -- requests

interface Exchange {
  method: "GET" | "POST";
  path: string;
  body?: string | Uint8Array<ArrayBuffer> | Blob;
  /** Milliseconds that the gateway may take by design. */
  waitMs?: number;
  signal?: AbortSignal | undefined;
}

/** Requests to one gateway, each repeated until it is answered or its deadline has come. */
class Gateway {
  readonly #locate: Locate;

  constructor(locate: Locate) {
    this.#locate = locate;
  }

  async hasSession(): Promise<boolean> {
    return isSessionToken((await this.#locate()).token);
  }

  async perform<T extends Answer>(
    op: Operation,
    deadline: number,
    waitSecs = 0,
    signal?: AbortSignal,
  ): Promise<T> {
    const body = JSON.stringify(op);
    const waitMs = waitSecs * 1000;
    const answer = await this.exchange(deadline, (session) => ({
      method: "POST",
      path: session ? "/ansible/agent/invoke" : "/v1/operations",
      body,
      waitMs,
      signal,
    }));
    return parseJson(answer) as T;
  }

  /** The body of the answer. `plan` is asked for each attempt: the kind of token may change. */
  async exchange(deadline: number, plan: (session: boolean) => Exchange): Promise<Uint8Array> {
    let delay = FIRST_DELAY_MS;
    let renewed = false;
    for (;;) {
      let problem: GatepostError;
      try {
        const target = await this.#locate();
        const request = plan(isSessionToken(target.token));
        try {
          return await attempt(target, request, deadline);
        } catch (error) {
          // The clocks differ: the token has expired there, but not here.
          if (codeOf(error) === "expired_token" && target.expireToken && !renewed) {
            renewed = true;
            await target.expireToken();
            continue;
          }
          throw error;
        }
      } catch (error) {
        if (!(error instanceof GatepostError) || !isPassing(error)) throw error;
        problem = error;
      }
      const pause = Math.max(delay * (0.5 + Math.random()), (problem.retryAfter ?? 0) * 1000);
      if (Date.now() + pause >= deadline) throw lateError(problem);
      await sleep(pause);
      delay = Math.min(delay * 2, LONGEST_DELAY_MS);
    }
  }
}

async function attempt(target: Target, request: Exchange, deadline: number): Promise<Uint8Array> {
  const given = Math.min(deadline - Date.now(), ATTEMPT_MS + (request.waitMs ?? 0));
  const ending = new AbortController();
  const timer = setTimeout(() => ending.abort(), Math.max(1, given));
  const stop = (): void => ending.abort();
  request.signal?.addEventListener("abort", stop);
  try {
    if (request.signal?.aborted) stop();
    const response = await fetch(target.url + request.path, {
      method: request.method,
      headers: {
        authorization: `Bearer ${target.token}`,
        "content-type":
          typeof request.body === "string" ? "application/json" : "application/octet-stream",
      },
      body: request.body ?? null,
      signal: ending.signal,
      // A token goes to the gateway and nowhere else.
      redirect: "error",
      credentials: "omit",
      cache: "no-store",
    });
    const body = await readBody(response);
    if (!response.ok) throw failureOf(response.status, body);
    return body;
  } catch (error) {
    if (request.signal?.aborted) throw new GatepostError("aborted", "the call was aborted");
    if (error instanceof GatepostError) throw error;
    throw unreachable(target.url, error, ending.signal.aborted);
  } finally {
    clearTimeout(timer);
    request.signal?.removeEventListener("abort", stop);
  }
}

async function readBody(response: Response): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > MAX_ANSWER_BYTES) {
      await reader.cancel();
      throw new GatepostError("unexpected_answer", "the answer is too large for a gateway's");
    }
    pieces.push(value);
  }
  const body = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    body.set(piece, at);
    at += piece.length;
  }
  return body;
}

function failureOf(status: number, body: Uint8Array): GatepostError {
  try {
    const failure = parseJson(body) as Failure;
    if (typeof failure.code === "string" && typeof failure.message === "string") {
      return new GatepostError(
        failure.code,
        failure.message,
        status,
        failure.retry_after ?? undefined,
      );
    }
  } catch {
    // Something in between answered.
  }
  return new GatepostError("unexpected_answer", `HTTP ${status} is not a gateway's answer`, status);
}

function unreachable(url: string, error: unknown, late: boolean): GatepostError {
  const cause = (error as { cause?: { code?: string; message?: string } }).cause;
  const advice = TLS_ADVICE[cause?.code ?? ""];
  if (advice) {
    return new GatepostError("untrusted", `the certificate of ${url} is not trusted: ${advice}`);
  }
  const why = late ? "it does not answer" : (cause?.code ?? cause?.message ?? "no connection");
  return new GatepostError("unreachable", `the gateway at ${url} cannot be reached (${why})`);
}

/** Whether the same request may succeed later. */
function isPassing(error: GatepostError): boolean {
  return error.code === "unreachable" || [429, 502, 503, 504].includes(error.status);
}

function lateError(problem: GatepostError): GatepostError {
  // A refusal of a gateway changed nothing; without an answer, the outcome is unknown.
  if (problem.status === 429 || problem.status === 503) return problem;
  const text = `no answer in time, so the outcome is unknown: ${problem.message}`;
  return new GatepostError("deadline_exceeded", text);
}

function parseJson(body: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    throw new GatepostError("unexpected_answer", "the answer is not JSON");
  }
}

function isSessionToken(token: string): boolean {
  return SESSION_PREFIXES.some((prefix) => token.startsWith(prefix));
}

function codeOf(error: unknown): string {
  return error instanceof GatepostError ? error.code : "";
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function deadlineOf(options: CallOptions): number {
  return Date.now() + (options.timeoutSecs ?? DEFAULT_TIMEOUT_SECS) * 1000;
}

/** The same object without the fields that were not given. */
function given<T extends object>(fields: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [K in keyof T]: Exclude<T[K], undefined> };
}

/** A UUIDv7: the id of a message or task, chosen here so that a repeated call is recognized. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let time = Date.now();
  for (let at = 5; at >= 0; at--) {
    bytes[at] = time % 256;
    time = Math.floor(time / 256);
  }
  bytes[6] = 0x70 | (bytes[6]! & 0x0f);
  bytes[8] = 0x80 | (bytes[8]! & 0x3f);
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    hex.slice(12, 16),
    hex.slice(16, 20),
    hex.slice(20),
  ].join("-");
}

// -- sessions of external agents

// `tlsPin` is for programs that can check it: `fetch` cannot.
type StoredSession = AgentTokens & { attempt?: string | null; tlsPin?: string | null };

/**
 * The session of an external agent, refreshed before it ends.
 *
 * A refresh token works once. So one process at a time uses a store, and each refresh has a random
 * number, which is saved first: if the answer is lost, the same number may be sent again.
 */
export class Session {
  readonly #url: string;
  readonly #store: SessionStore;
  #renewing: Promise<string> | null = null;
  #held: StoredSession | null = null;

  constructor(url: string, store: SessionStore) {
    this.#url = trimUrl(url);
    this.#store = store;
  }

  locate: Locate = async () => {
    const token = await this.#currentToken();
    return { url: this.#url, token, expireToken: () => this.#expire(token) };
  };

  async #currentToken(): Promise<string> {
    const held = this.#held;
    if (held && held.accessExpiresAt - Date.now() > RENEW_MARGIN_MS) return held.accessToken;
    // Calls at the same time share one refresh.
    this.#renewing ??= this.#renew().finally(() => (this.#renewing = null));
    return this.#renewing;
  }

  async #renew(): Promise<string> {
    const text = (await this.#store.load()).trim();
    const held = readSession(text);
    if (held && held.accessExpiresAt - Date.now() > RENEW_MARGIN_MS) {
      this.#held = held;
      return held.accessToken;
    }
    const tokens = held
      ? await this.#refresh(held)
      : await this.#ask("exchange", { inviteToken: text });
    const tlsPin = held ? held.tlsPin : pinOf(text);
    const kept = { ...tokens, attempt: null, ...given({ tlsPin: tlsPin ?? undefined }) };
    await this.#store.save(JSON.stringify(kept));
    this.#held = kept;
    return kept.accessToken;
  }

  async #refresh(held: StoredSession): Promise<AgentTokens> {
    const attempt = held.attempt ?? newId();
    if (!held.attempt) await this.#store.save(JSON.stringify({ ...held, attempt }));
    return this.#ask("refresh", { refreshToken: held.refreshToken, attempt });
  }

  async #ask(action: "exchange" | "refresh", body: object): Promise<AgentTokens> {
    const answer = await attempt(
      { url: this.#url, token: "" },
      { method: "POST", path: `/ansible/agent/auth/${action}`, body: JSON.stringify(body) },
      Date.now() + ATTEMPT_MS,
    );
    return parseJson(answer) as AgentTokens;
  }

  async #expire(token: string): Promise<void> {
    if (this.#held?.accessToken !== token) return;
    const held = { ...this.#held, accessExpiresAt: 0 };
    await this.#store.save(JSON.stringify(held));
    this.#held = null;
  }
}

/** The pin of the gateway's key, which follows the id in an invite if there is one. */
function pinOf(invite: string): string | null {
  const pin = (invite.split(".")[1] ?? "").slice(16);
  return /^[0-9a-f]{64}$/.test(pin) ? pin : null;
}

function readSession(text: string): StoredSession | null {
  if (text.startsWith(INVITE_PREFIX)) return null;
  try {
    const held = JSON.parse(text) as StoredSession;
    if (typeof held.accessToken === "string" && typeof held.refreshToken === "string") return held;
  } catch {
    // Reported below.
  }
  throw new GatepostError(
    "unauthorized",
    "this is neither an invite nor a session: invite the agent again",
  );
}

function trimUrl(url: string): string {
  if (!/^https?:\/\//.test(url)) {
    throw new GatepostError(
      "config_error",
      `${url} is not a gateway's address; write https://HOST:PORT`,
    );
  }
  return url.replace(/\/+$/, "");
}

// -- the client

export interface ClientOptions {
  /** The agent that sends and receives. An external agent's session has its own name. */
  name: string;
  /** The gateway's address and its token; or `locate`, such as that of a `Session`. */
  url?: string;
  token?: string;
  locate?: Locate;
}

/** Calls to one gateway as one agent. */
export class Client {
  readonly name: string;
  readonly #gateway: Gateway;

  constructor(options: ClientOptions) {
    this.name = options.name;
    const { url, token } = options;
    if (!options.locate && (url === undefined || token === undefined)) {
      throw new GatepostError("config_error", "give `url` and `token`, or `locate`");
    }
    const target = { url: options.locate ? "" : trimUrl(url!), token: token ?? "" };
    this.#gateway = new Gateway(options.locate ?? (async () => target));
  }

  /** Do one operation of the mailbox protocol; the other calls are made of this one. */
  async perform<T extends Answer>(
    op: Operation,
    options: CallOptions & { waitSecs?: number; signal?: AbortSignal | undefined } = {},
  ): Promise<T> {
    const wait = options.waitSecs ?? 0;
    return this.#gateway.perform<T>(op, deadlineOf(options) + wait * 1000, wait, options.signal);
  }

  /** The gateway's status. */
  async status(options: CallOptions = {}): Promise<Status> {
    const body = await this.#gateway.exchange(deadlineOf(options), (session) =>
      session
        ? { method: "POST", path: "/ansible/agent/invoke", body: '{"op":"status"}' }
        : { method: "GET", path: "/v1/status" },
    );
    return parseJson(body) as Status;
  }

  /** Register this agent, so that messages can be sent to it. Returns why its mail goes elsewhere. */
  async register(
    options: CallOptions & { order?: "fifo" | "none" | undefined } = {},
  ): Promise<string> {
    const op: Register = { op: "register", agent: this.name, ...given({ order: options.order }) };
    return (await this.perform<Registered>(op, options)).problem ?? "";
  }

  // -- messages

  /**
   * Send a message, tracked until its turn has ended. Resolves once the gateway has it on disk, or
   * with `wait` once it is that far. Bytes (`Uint8Array`, `Blob`) and large payloads go as blobs.
   */
  async send(to: string | string[], payload: unknown, options: SendOptions = {}): Promise<Sent> {
    const deadline = deadlineOf(options);
    const message: NewSend = {
      from_agent: options.from ?? this.name,
      ...(Array.isArray(to)
        ? { to_agents: to }
        : to === "*"
          ? { to_agents: "*" }
          : { to_agent: to }),
      event_id: newId(),
      replies: options.wait === "processed" ? "caller" : "mailbox",
      ...given({
        idempotency_key: options.idempotencyKey,
        corr_id: options.corrId,
        ttl_secs: options.ttlSecs,
        priority: options.priority,
        order: options.order,
        not_before: options.notBefore,
        max_retries: options.maxRetries,
        traceparent: options.traceparent,
      }),
      ...(await this.#attach(payload, deadline, "payload", "payload_ref")),
    };
    const op: Send = { op: "send", messages: [message] };
    const [sent] = (await this.#gateway.perform<SendResults>(op, deadline)).results;
    if (!sent) throw new GatepostError("unexpected_answer", "the answer has no result");
    throwFailure(sent.error);
    return options.wait ? this.#waitFor(sent, options.wait, deadline) : sent;
  }

  /** Send a message and return the reply. Throws `turn_failed` if the turn failed. */
  async request(to: string, payload: unknown, options: SendOptions = {}): Promise<unknown> {
    const sent = await this.send(to, payload, { ...options, wait: "processed" });
    if (sent.outcome !== "ok") {
      const why = sent.reason ? `: ${sent.reason}` : "";
      throw new GatepostError("turn_failed", `the turn of ${to} ended with ${sent.outcome}${why}`);
    }
    if (sent.reply_ref && sent.reply === undefined) {
      throw new GatepostError(
        "invalid_request",
        `the reply is not JSON; download ${sent.reply_ref}`,
      );
    }
    return sent.reply ?? null;
  }

  /** Wait for the outcome of a message that was sent before, and fetch its reply. */
  async awaitOutcome(
    eventId: string,
    options: CallOptions & { until?: WaitGoal } = {},
  ): Promise<Sent> {
    return this.#waitFor({ event_id: eventId }, options.until ?? "processed", deadlineOf(options));
  }

  async #waitFor(sent: Sent, goal: WaitGoal, deadline: number): Promise<Sent> {
    if (sent.copies?.length) {
      const copies = sent.copies.map((copy) => this.#waitFor(copy, goal, deadline));
      return { ...sent, copies: await Promise.all(copies) };
    }
    let found = sent;
    while (!hasReached(found, goal)) {
      const left = (deadline - Date.now()) / 1000;
      if (left <= 0) {
        const text = `message ${sent.event_id} was sent, but is not ${goal} in time; its outcome is unknown`;
        throw new GatepostError("deadline_exceeded", text);
      }
      const wait = Math.min(left, MAX_WAIT_SECS);
      const op: Await = { op: "await", event_id: sent.event_id, wait_secs: wait, until: goal };
      found = (await this.#gateway.perform<Awaited>(op, deadline + 500, wait)).result;
    }
    if (sent.to_agent) found.to_agent = sent.to_agent;
    if (found.reply_ref) await this.#loadReply(found, deadline);
    return found;
  }

  /** A reply that is not JSON stays where it is. */
  async #loadReply(sent: Sent, deadline: number): Promise<void> {
    const body = await this.#download(sent.reply_ref!, deadline);
    try {
      sent.reply = parseJson(body);
    } catch {
      // `reply_ref` names it.
    }
  }

  /** Lease mail. Settle each message within its lease, and those of a sender in this order. */
  async receive(options: ReceiveOptions = {}): Promise<Message[]> {
    const mailbox = options.mailbox ?? this.name;
    const op: Dequeue = {
      op: "dequeue",
      mailbox,
      limit: options.limit ?? 1,
      wait_secs: options.waitSecs ?? 0,
      // With its own name, a repeated request gets the messages that it got before.
      consumer: options.consumer ?? newId(),
    };
    const found = await this.perform<Messages>(op, options);
    return found.messages.map((message) => new Message(message, this));
  }

  async ack(
    mailbox: string,
    receipt: string,
    reply?: unknown,
    options: CallOptions = {},
  ): Promise<void> {
    const deadline = deadlineOf(options);
    const op: Ack = { op: "ack", mailbox, receipts: [receipt] };
    if (reply !== undefined) {
      const { inline, ref } = await this.#attach(reply, deadline, "inline", "ref");
      if (ref !== undefined) op.reply_refs = { [receipt]: ref as string };
      else op.replies = { [receipt]: inline };
    }
    throwFailure((await this.#gateway.perform<Settled>(op, deadline)).failures?.[0]);
  }

  async nack(
    mailbox: string,
    receipt: string,
    reason = "",
    options: CallOptions & { retry?: boolean } = {},
  ): Promise<void> {
    const retry = options.retry ?? true;
    const op: Nack = {
      op: "nack",
      mailbox,
      receipts: [receipt],
      reason: reason.slice(0, 2000),
      retry,
    };
    throwFailure((await this.perform<Settled>(op, options)).failures?.[0]);
  }

  /** Extend leases by a full timeout; returns the lease handles that are no longer valid. */
  async extend(mailbox: string, receipts: string[], options: CallOptions = {}): Promise<string[]> {
    const answer = await this.perform<Settled>({ op: "extend", mailbox, receipts }, options);
    return (answer.failures ?? []).map((failure) => failure.subject ?? "");
  }

  // -- blobs

  /** Store a large payload; its digest goes into `payload_ref`. */
  async upload(
    content: Uint8Array | Blob | string,
    options: CallOptions = {},
  ): Promise<StoredBlob> {
    return this.#upload(content, deadlineOf(options));
  }

  async download(digest: string, options: CallOptions = {}): Promise<Uint8Array> {
    return this.#download(digest, deadlineOf(options));
  }

  async #upload(content: Uint8Array | Blob | string, deadline: number): Promise<StoredBlob> {
    const body = content instanceof Blob ? content : new Blob([content as BlobPart]);
    const answer = await this.#gateway.exchange(deadline, (session) => ({
      method: "POST",
      path: session ? "/ansible/agent/uploads" : "/v1/blobs",
      body,
      waitMs: deadline - Date.now(),
    }));
    return parseJson(answer) as StoredBlob;
  }

  async #download(digest: string, deadline: number): Promise<Uint8Array> {
    return this.#gateway.exchange(deadline, (session) => ({
      method: "GET",
      path: `${session ? "/ansible/agent/blobs" : "/v1/blobs"}/${encodeURIComponent(digest)}`,
      waitMs: deadline - Date.now(),
    }));
  }

  /** The payload as a field of a message: inline if it is small JSON, else as an uploaded blob. */
  async #attach(
    payload: unknown,
    deadline: number,
    inline: string,
    ref: string,
  ): Promise<Record<string, unknown>> {
    if (payload instanceof Uint8Array || payload instanceof Blob) {
      return { [ref]: (await this.#upload(payload, deadline)).digest };
    }
    const value = payload === undefined ? null : payload;
    const text = JSON.stringify(value);
    if (text === undefined) throw new GatepostError("invalid_request", "this payload has no JSON");
    // A character has at most three bytes in UTF-8.
    if (text.length * 3 <= MAX_INLINE_BYTES) return { [inline]: value };
    const bytes = new TextEncoder().encode(text);
    if (bytes.length <= MAX_INLINE_BYTES) return { [inline]: value };
    return { [ref]: (await this.#upload(bytes, deadline)).digest };
  }

  // -- tasks

  /** Create a task for an agent, or for one that has the capabilities. */
  async createTask(description: string, options: TaskOptions): Promise<TaskView> {
    const [task] = await this.createTasks(description, options);
    if (!task) throw new GatepostError("unexpected_answer", "the answer has no task");
    return task;
  }

  /** Create a task for each of several agents. */
  async createTasks(description: string, options: TaskOptions): Promise<TaskView[]> {
    const deadline = deadlineOf(options);
    const task: NewTask = {
      from_agent: options.from ?? this.name,
      description,
      task_id: newId(),
      ...given({
        to_agents: typeof options.to === "string" ? [options.to] : options.to,
        required_capabilities: options.capabilities,
        task_type: options.taskType,
        ttl_secs: options.ttlSecs,
        idempotency_key: options.idempotencyKey,
        may_wait: options.mayWait,
      }),
      ...(options.input === undefined
        ? {}
        : await this.#attach(options.input, deadline, "input", "input_ref")),
    };
    const op: TaskCreate = { op: "task_create", tasks: [task] };
    const [created] = (await this.#gateway.perform<TasksCreated>(op, deadline)).results;
    if (!created || created.code) {
      const { code, error, retry_after } = created ?? {};
      throw new GatepostError(
        code || "unexpected_answer",
        error ?? "",
        400,
        retry_after ?? undefined,
      );
    }
    return created.tasks ?? [];
  }

  /** A task as it is now. */
  async showTask(taskId: string, options: CallOptions = {}): Promise<TaskView> {
    const op: TaskAwait = { op: "task_await", task_id: taskId, wait_secs: 0 };
    return (await this.perform<TaskAwaited>(op, options)).task;
  }

  /** Wait for the end of a task. `onChange` hears of its progress. */
  async awaitTask(
    taskId: string,
    options: CallOptions & { onChange?: (task: TaskView) => void } = {},
  ): Promise<TaskView> {
    const deadline = deadlineOf(options);
    let known = 0;
    for (;;) {
      const left = (deadline - Date.now()) / 1000;
      const wait = known ? Math.max(0, Math.min(left, MAX_WAIT_SECS)) : 0;
      const op: TaskAwait = { op: "task_await", task_id: taskId, wait_secs: wait, known };
      const { task } = await this.#gateway.perform<TaskAwaited>(op, deadline + 500, wait);
      if ((task.updated_at ?? 0) > known) options.onChange?.(task);
      known = Math.max(known, task.updated_at ?? 1);
      if (task.ended_at != null) return task;
      if (Date.now() >= deadline) {
        const text = `task ${taskId} has not ended in time; it is ${task.state}`;
        throw new GatepostError("deadline_exceeded", text);
      }
    }
  }

  /** Create a task, wait for its end, and return its result. Throws if it did not complete. */
  async runTask(description: string, options: TaskOptions): Promise<unknown> {
    const deadline = deadlineOf(options);
    const created = await this.createTask(description, options);
    const task = await this.awaitTask(created.id, { timeoutSecs: (deadline - Date.now()) / 1000 });
    if (task.state !== "completed") {
      const why = task.error ? `: ${task.error}` : "";
      throw new GatepostError(
        task.error_code ?? "task_failed",
        `task ${task.id} ${task.state}${why}`,
      );
    }
    return task.result_ref
      ? parseJson(await this.download(task.result_ref))
      : (task.result ?? null);
  }

  /** Cancel a task. If another gateway executes it, that one decides. */
  async cancelTask(taskId: string, reason = "", options: CallOptions = {}): Promise<TaskView> {
    const op: TaskCancel = { op: "task_cancel", task_id: taskId, reason: reason.slice(0, 2000) };
    return (await this.perform<TaskAwaited>(op, options)).task;
  }

  /** Report about a task that this agent does; `serve` does so by itself. */
  async reportTask(report: TaskReport, options: CallOptions = {}): Promise<void> {
    const op: TaskReports = { op: "task_report", reports: [report] };
    const refused = (await this.perform<TasksReported>(op, options)).refused?.[0];
    if (refused) throw new GatepostError(refused.code, refused.error, 409);
  }

  /** Report the end of a task, with a result of any size. */
  async completeTask(taskId: string, result: unknown, options: CallOptions = {}): Promise<void> {
    const deadline = deadlineOf(options);
    const attached = await this.#attach(result, deadline, "result", "result_ref");
    const report: TaskReport = {
      task_id: taskId,
      agent: this.name,
      action: "complete",
      ...attached,
    };
    await this.reportTask(report, { timeoutSecs: (deadline - Date.now()) / 1000 });
  }

  // -- an agent

  /** Handle this agent's mail until `signal` is aborted. Leases are extended meanwhile. */
  async serve(options: ServeOptions): Promise<void> {
    if (!options.onMessage && !options.onTask) {
      throw new GatepostError("invalid_request", "give `onMessage` or `onTask`");
    }
    const report = options.onProblem ?? ((problem) => console.error(`gatepost: ${problem}`));
    for (;;) {
      if (options.signal?.aborted) return;
      try {
        const problem = await this.register({ order: options.order });
        if (problem) report(`agent ${this.name} gets no mail here: ${problem}`);
        break;
      } catch (error) {
        if (!isAway(error)) throw error;
        report((error as Error).message);
      }
    }
    // Each worker is a consumer: after a lost answer it gets the same message again.
    const workers = Array.from({ length: options.concurrency ?? 4 }, () =>
      this.#work(options, newId(), report),
    );
    await Promise.all(workers);
  }

  async #work(
    options: ServeOptions,
    consumer: string,
    report: (problem: string) => void,
  ): Promise<void> {
    while (!options.signal?.aborted) {
      let found: Message[];
      try {
        const signal = options.signal;
        found = await this.receive({ waitSecs: MAX_WAIT_SECS, consumer, ...given({ signal }) });
      } catch (error) {
        if (codeOf(error) === "aborted") return;
        if (!isAway(error)) throw error;
        report((error as Error).message);
        continue;
      }
      for (const message of found) await this.#takeTurn(message, options, report);
    }
  }

  async #takeTurn(
    message: Message,
    options: ServeOptions,
    report: (problem: string) => void,
  ): Promise<void> {
    try {
      if (message.kind === "task_create") await this.#takeTask(message, options, report);
      else await this.#takeMessage(message, options, report);
    } catch (error) {
      report(`the turn for ${message.id} was not settled: ${reasonOf(error)}`);
    }
  }

  async #takeMessage(
    message: Message,
    options: ServeOptions,
    report: (problem: string) => void,
  ): Promise<void> {
    const every = Math.max(1000, (message.leaseSecs * 1000) / 3);
    const beat = setInterval(() => void message.keep(), every);
    let reply: unknown;
    try {
      if (!options.onMessage) throw new Reject(`agent ${this.name} takes tasks only`);
      await message.load();
      reply = await options.onMessage(message);
    } catch (error) {
      report(`the turn for ${message.id} failed: ${reasonOf(error)}`);
      await message.nack(reasonOf(error), { retry: !(error instanceof Reject) });
      return;
    } finally {
      clearInterval(beat);
    }
    // A reply is never answered, so two agents cannot reply to each other for ever.
    await message.ack(message.kind === "reply" ? undefined : (reply ?? undefined));
  }

  async #takeTask(
    message: Message,
    options: ServeOptions,
    report: (problem: string) => void,
  ): Promise<void> {
    const task = new Task(message, await message.load(), this);
    const accept: TaskReport = {
      task_id: task.attemptId,
      agent: this.name,
      action: "accept",
      receipt: message.receipt,
    };
    try {
      await this.reportTask(accept);
    } catch (error) {
      if (!TASK_HAS_ENDED.includes(codeOf(error))) throw error;
      return message.ack();
    }
    const beat = setInterval(() => void task.keep(), TASK_BEAT_MS);
    try {
      if (!options.onTask) throw new Reject(`agent ${this.name} takes no tasks`);
      const result = await options.onTask(task);
      if (!task.signal.aborted) await this.completeTask(task.attemptId, result);
    } catch (error) {
      report(`task ${task.id} failed: ${reasonOf(error)}`);
      await this.#failTask(task, error);
    } finally {
      clearInterval(beat);
    }
  }

  async #failTask(task: Task, error: unknown): Promise<void> {
    if (task.signal.aborted) return;
    await this.reportTask({
      task_id: task.attemptId,
      agent: this.name,
      action: "fail",
      error_code: error instanceof Reject ? "rejected" : "failed",
      error: reasonOf(error),
    });
  }
}

function hasReached(sent: Sent, goal: WaitGoal): boolean {
  const accepted = goal === "accepted" && sent.accepted_at != null;
  return accepted || sent.processed_at != null || sent.state === "archived" || sent.error != null;
}

function throwFailure(failure: Failure | null | undefined): void {
  if (failure) {
    throw new GatepostError(failure.code, failure.message, 400, failure.retry_after ?? undefined);
  }
}

function isAway(error: unknown): boolean {
  return (
    error instanceof GatepostError && (codeOf(error) === "deadline_exceeded" || isPassing(error))
  );
}

/** Why a turn failed, without what looks like a secret. */
function reasonOf(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return text.replace(SECRETS, "$1[redacted]").slice(0, 500);
}

/** A leased message. Settle it with `ack` or `nack` before the lease ends. */
export class Message {
  readonly wire: LeasedMessage;
  /** Aborted when the lease is lost: another consumer may have the message now. */
  readonly signal: AbortSignal;
  readonly #client: Client;
  readonly #ending = new AbortController();
  /** The payload; undefined until `load` if it is a blob. `serve` loads it. */
  payload: unknown;

  constructor(wire: LeasedMessage, client: Client) {
    this.wire = wire;
    this.#client = client;
    this.signal = this.#ending.signal;
    this.payload = this.#digest ? undefined : wire.payload;
  }

  get id(): string {
    return this.wire.msg_id;
  }

  get from(): string {
    return this.wire.from;
  }

  /** `message`, `reply` for the answer to a message of this agent, or `task_create`. */
  get kind(): string {
    return this.wire.event?.kind ?? "message";
  }

  /** The conversation. */
  get corrId(): string {
    return this.wire.event?.corr_id ?? this.wire.msg_id;
  }

  /** Turns that failed before this one. */
  get attempt(): number {
    return this.wire.attempt;
  }

  /** The lease handle. */
  get receipt(): string {
    return this.wire.receipt;
  }

  get leaseSecs(): number {
    return this.wire.lease_secs ?? 30;
  }

  get #digest(): string | null {
    return this.wire.event?.payload_ref ?? null;
  }

  /** The payload, fetched if it is a blob: its JSON, or else its bytes. */
  async load(): Promise<unknown> {
    if (this.payload === undefined && this.#digest) {
      const body = await this.#client.download(this.#digest);
      try {
        this.payload = parseJson(body);
      } catch {
        this.payload = body;
      }
    }
    return this.payload;
  }

  /** End the turn well; `reply` goes to the sender. */
  async ack(reply?: unknown, options: CallOptions = {}): Promise<void> {
    await this.#client.ack(this.wire.to, this.receipt, reply, options);
  }

  /** Fail the turn: the message is delivered again later, or without `retry` is a dead letter. */
  async nack(reason = "", options: CallOptions & { retry?: boolean } = {}): Promise<void> {
    await this.#client.nack(this.wire.to, this.receipt, reason, options);
  }

  /** Extend the lease by a full timeout. Returns false, and aborts `signal`, if it is lost. */
  async keep(options: CallOptions = {}): Promise<boolean> {
    try {
      const lost = await this.#client.extend(this.wire.to, [this.receipt], options);
      if (lost.length) this.#ending.abort();
    } catch (error) {
      if (!isAway(error)) this.#ending.abort();
    }
    return !this.signal.aborted;
  }
}

interface TaskDocument {
  description?: string;
  taskType?: string;
  input?: unknown;
}

/** A task for this agent. */
export class Task {
  /** The id that its requester knows, at every attempt. */
  readonly id: string;
  /** The id of this attempt, which reports name. */
  readonly attemptId: string;
  readonly requester: string;
  readonly description: string;
  readonly taskType: string;
  readonly input: unknown;
  /** Aborted when the task has ended in another way, such as by a cancellation. */
  readonly signal: AbortSignal;
  readonly #client: Client;
  readonly #ending = new AbortController();

  constructor(message: Message, document: unknown, client: Client) {
    const asked = (document ?? {}) as TaskDocument;
    this.id = message.wire.event?.origin_event_id ?? message.id;
    this.attemptId = message.id;
    this.requester = message.from;
    this.description = asked.description ?? "";
    this.taskType = asked.taskType ?? "";
    this.input = asked.input;
    this.#client = client;
    this.signal = this.#ending.signal;
  }

  /** Report progress from 0 to 1, and a note. */
  async update(progress?: number, note?: string): Promise<void> {
    const report = { task_id: this.attemptId, agent: this.#client.name, action: "update" as const };
    await this.#client.reportTask({ ...report, ...given({ progress, note }) });
  }

  /** Say that the work goes on; learn if the task has ended in another way. */
  async keep(): Promise<void> {
    try {
      await this.update();
    } catch (error) {
      if (TASK_HAS_ENDED.includes(codeOf(error))) this.#ending.abort();
    }
  }
}

// -- finding a gateway, in Node

export interface ConnectOptions {
  /** Default: $GATEPOST_HOME, else ~/.gatepost. */
  stateDir?: string;
  /** Default: $GATEPOST_URL, else the gateway that runs on the state directory. */
  url?: string;
  /** A token, or an external agent's invite or session. Default: $GATEPOST_TOKEN_FILE. */
  tokenFile?: string;
  /** A context of `gatepost context add`, instead of the others. Default: $GATEPOST_CONTEXT. */
  context?: string;
}

interface NodeFiles {
  readFile(path: string, encoding: "utf8"): Promise<string>;
  writeFile(path: string, text: string, options: { mode: number; flush?: boolean }): Promise<void>;
  rename(from: string, to: string): Promise<void>;
  stat(path: string): Promise<{ mode: number }>;
}

interface NodeProcess {
  env: Record<string, string | undefined>;
  pid: number;
}

/**
 * A client of the gateway that the environment names, as the Python client finds it. Node only.
 *
 * The address and the token are read anew for each call, so the gateway may come back elsewhere.
 */
export async function connect(name: string, options: ConnectOptions = {}): Promise<Client> {
  const { env } = nodeProcess();
  const home = options.stateDir ?? env["GATEPOST_HOME"] ?? `${env["HOME"] ?? "."}/.gatepost`;
  const files = await nodeFiles();
  const chosen = [options.stateDir, options.url, options.tokenFile].some(
    (each) => each !== undefined,
  );
  const context = options.context ?? (chosen ? undefined : env["GATEPOST_CONTEXT"]);
  if (context) options = await readContext(files, home, context);
  const url = options.url ?? (options.stateDir ? undefined : env["GATEPOST_URL"]);
  const named = options.tokenFile ?? (options.stateDir ? undefined : env["GATEPOST_TOKEN_FILE"]);
  const file = named ?? `${home}/token`;
  const text = await readSecret(files, file);
  if (text.startsWith("{") || text.startsWith(INVITE_PREFIX)) {
    const address = url ?? (await readAddress(files, home));
    return new Client({ name, locate: new Session(address, fileStore(file)).locate });
  }
  return new Client({
    name,
    locate: async () => ({
      url: url ? trimUrl(url) : await readAddress(files, home),
      token: await readSecret(files, file),
    }),
  });
}

/** Keeps a session in a file that only its owner can read. One process at a time may use it. */
export function fileStore(file: string): SessionStore {
  return {
    load: async () => readSecret(await nodeFiles(), file),
    save: async (text) => {
      const files = await nodeFiles();
      const temporary = `${file}.${nodeProcess().pid}.tmp`;
      await files.writeFile(temporary, text, { mode: 0o600, flush: true });
      await files.rename(temporary, file);
    },
  };
}

async function readContext(files: NodeFiles, home: string, name: string): Promise<ConnectOptions> {
  let found: { url: string; token_file: string } | undefined;
  try {
    found = JSON.parse(await files.readFile(`${home}/contexts.json`, "utf8")).contexts[name];
  } catch {
    // Reported below.
  }
  if (!found) throw new GatepostError("config_error", `there is no context ${name} in ${home}`);
  const { mode } = await files.stat(found.token_file).catch(() => ({ mode: 0 }));
  if (mode & 0o077) {
    const text = `others on this machine can use ${found.token_file}: run chmod 600 on it`;
    throw new GatepostError("unauthorized", text);
  }
  return { url: found.url, tokenFile: found.token_file };
}

async function readAddress(files: NodeFiles, home: string): Promise<string> {
  try {
    const endpoint = JSON.parse(await files.readFile(`${home}/endpoint.json`, "utf8"));
    return String(endpoint.url);
  } catch {
    throw new GatepostError(
      "unreachable",
      `no gateway runs on ${home}; start one with gatepost up`,
    );
  }
}

async function readSecret(files: NodeFiles, file: string): Promise<string> {
  try {
    return (await files.readFile(file, "utf8")).trim();
  } catch (error) {
    const why = (error as { code?: string }).code ?? "unreadable";
    throw new GatepostError("unauthorized", `the token file ${file} cannot be read (${why})`);
  }
}

function nodeProcess(): NodeProcess {
  const found = (globalThis as { process?: NodeProcess }).process;
  if (!found?.env) {
    throw new GatepostError(
      "config_error",
      "there are no files here: use `new Client({ url, token })`",
    );
  }
  return found;
}

async function nodeFiles(): Promise<NodeFiles> {
  // Bundlers for browsers leave an import alone whose name they cannot see.
  const name = ["node:fs", "promises"].join("/");
  return (await import(name)) as NodeFiles;
}
