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
export type Operation = Enqueue | Dequeue | Ack | Nack | Extend | Peek | Purge | PeekDeadLetter | PurgeDeadLetter | Send | Await | Register | TaskCreate | TaskReports | TaskAwait | TaskCancel;
export type Answer = Enqueued | Messages | Settled | Summaries | DeadLetters | Count | SendResults | Awaited | TasksCreated | TasksReported | TaskAwaited | Registered | Done | Failed;
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
export declare class GatepostError extends Error {
    readonly code: string;
    /** The HTTP status; 0 if no gateway answered. */
    readonly status: number;
    readonly retryAfter: number | undefined;
    constructor(code: string, message: string, status?: number, retryAfter?: number);
}
/** Throw this in a handler to refuse a message or task for good: it is not delivered again. */
export declare class Reject extends Error {
}
/** A UUIDv7: the id of a message or task, chosen here so that a repeated call is recognized. */
export declare function newId(): string;
/**
 * The session of an external agent, refreshed before it ends.
 *
 * A refresh token works once. So one process at a time uses a store, and each refresh has a random
 * number, which is saved first: if the answer is lost, the same number may be sent again.
 */
export declare class Session {
    #private;
    constructor(url: string, store: SessionStore);
    locate: Locate;
}
export interface ClientOptions {
    /** The agent that sends and receives. An external agent's session has its own name. */
    name: string;
    /** The gateway's address and its token; or `locate`, such as that of a `Session`. */
    url?: string;
    token?: string;
    locate?: Locate;
}
/** Calls to one gateway as one agent. */
export declare class Client {
    #private;
    readonly name: string;
    constructor(options: ClientOptions);
    /** Do one operation of the mailbox protocol; the other calls are made of this one. */
    perform<T extends Answer>(op: Operation, options?: CallOptions & {
        waitSecs?: number;
        signal?: AbortSignal | undefined;
    }): Promise<T>;
    /** The gateway's status. */
    status(options?: CallOptions): Promise<Status>;
    /** Register this agent, so that messages can be sent to it. Returns why its mail goes elsewhere. */
    register(options?: CallOptions & {
        order?: "fifo" | "none" | undefined;
    }): Promise<string>;
    /**
     * Send a message, tracked until its turn has ended. Resolves once the gateway has it on disk, or
     * with `wait` once it is that far. Bytes (`Uint8Array`, `Blob`) and large payloads go as blobs.
     */
    send(to: string | string[], payload: unknown, options?: SendOptions): Promise<Sent>;
    /** Send a message and return the reply. Throws `turn_failed` if the turn failed. */
    request(to: string, payload: unknown, options?: SendOptions): Promise<unknown>;
    /** Wait for the outcome of a message that was sent before, and fetch its reply. */
    awaitOutcome(eventId: string, options?: CallOptions & {
        until?: WaitGoal;
    }): Promise<Sent>;
    /** Lease mail. Settle each message within its lease, and those of a sender in this order. */
    receive(options?: ReceiveOptions): Promise<Message[]>;
    ack(mailbox: string, receipt: string, reply?: unknown, options?: CallOptions): Promise<void>;
    nack(mailbox: string, receipt: string, reason?: string, options?: CallOptions & {
        retry?: boolean;
    }): Promise<void>;
    /** Extend leases by a full timeout; returns the lease handles that are no longer valid. */
    extend(mailbox: string, receipts: string[], options?: CallOptions): Promise<string[]>;
    /** Store a large payload; its digest goes into `payload_ref`. */
    upload(content: Uint8Array | Blob | string, options?: CallOptions): Promise<StoredBlob>;
    download(digest: string, options?: CallOptions): Promise<Uint8Array>;
    /** Create a task for an agent, or for one that has the capabilities. */
    createTask(description: string, options: TaskOptions): Promise<TaskView>;
    /** Create a task for each of several agents. */
    createTasks(description: string, options: TaskOptions): Promise<TaskView[]>;
    /** A task as it is now. */
    showTask(taskId: string, options?: CallOptions): Promise<TaskView>;
    /** Wait for the end of a task. `onChange` hears of its progress. */
    awaitTask(taskId: string, options?: CallOptions & {
        onChange?: (task: TaskView) => void;
    }): Promise<TaskView>;
    /** Create a task, wait for its end, and return its result. Throws if it did not complete. */
    runTask(description: string, options: TaskOptions): Promise<unknown>;
    /** Cancel a task. If another gateway executes it, that one decides. */
    cancelTask(taskId: string, reason?: string, options?: CallOptions): Promise<TaskView>;
    /** Report about a task that this agent does; `serve` does so by itself. */
    reportTask(report: TaskReport, options?: CallOptions): Promise<void>;
    /** Report the end of a task, with a result of any size. */
    completeTask(taskId: string, result: unknown, options?: CallOptions): Promise<void>;
    /** Handle this agent's mail until `signal` is aborted. Leases are extended meanwhile. */
    serve(options: ServeOptions): Promise<void>;
}
/** A leased message. Settle it with `ack` or `nack` before the lease ends. */
export declare class Message {
    #private;
    readonly wire: LeasedMessage;
    /** Aborted when the lease is lost: another consumer may have the message now. */
    readonly signal: AbortSignal;
    /** The payload; undefined until `load` if it is a blob. `serve` loads it. */
    payload: unknown;
    constructor(wire: LeasedMessage, client: Client);
    get id(): string;
    get from(): string;
    /** `message`, `reply` for the answer to a message of this agent, or `task_create`. */
    get kind(): string;
    /** The conversation. */
    get corrId(): string;
    /** Turns that failed before this one. */
    get attempt(): number;
    /** The lease handle. */
    get receipt(): string;
    get leaseSecs(): number;
    /** The payload, fetched if it is a blob: its JSON, or else its bytes. */
    load(): Promise<unknown>;
    /** End the turn well; `reply` goes to the sender. */
    ack(reply?: unknown, options?: CallOptions): Promise<void>;
    /** Fail the turn: the message is delivered again later, or without `retry` is a dead letter. */
    nack(reason?: string, options?: CallOptions & {
        retry?: boolean;
    }): Promise<void>;
    /** Extend the lease by a full timeout. Returns false, and aborts `signal`, if it is lost. */
    keep(options?: CallOptions): Promise<boolean>;
}
/** A task for this agent. */
export declare class Task {
    #private;
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
    constructor(message: Message, document: unknown, client: Client);
    /** Report progress from 0 to 1, and a note. */
    update(progress?: number, note?: string): Promise<void>;
    /** Say that the work goes on; learn if the task has ended in another way. */
    keep(): Promise<void>;
}
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
/**
 * A client of the gateway that the environment names, as the Python client finds it. Node only.
 *
 * The address and the token are read anew for each call, so the gateway may come back elsewhere.
 */
export declare function connect(name: string, options?: ConnectOptions): Promise<Client>;
/** Keeps a session in a file that only its owner can read. One process at a time may use it. */
export declare function fileStore(file: string): SessionStore;
