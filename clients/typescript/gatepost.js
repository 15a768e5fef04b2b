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
/** An error of a gateway, or of the way to it. `code` is stable, `message` says what to do. */
export class GatepostError extends Error {
    code;
    /** The HTTP status; 0 if no gateway answered. */
    status;
    retryAfter;
    constructor(code, message, status = 0, retryAfter) {
        super(message);
        this.name = "GatepostError";
        this.code = code;
        this.status = status;
        this.retryAfter = retryAfter;
    }
}
/** Throw this in a handler to refuse a message or task for good: it is not delivered again. */
export class Reject extends Error {
}
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
const SECRETS = /(bearer\s+|(?:authorization|token|password|secret|api[_-]?key)["']?\s*[:=]\s*["']?|gp[a-z]?1\.[^.\s]+\.)(?!bearer)[^\s"',;]+/gi;
const TLS_ADVICE = {
    DEPTH_ZERO_SELF_SIGNED_CERT: "name a copy of the gateway's tls.crt in NODE_EXTRA_CA_CERTS before Node starts",
    SELF_SIGNED_CERT_IN_CHAIN: "name the authority's certificate in NODE_EXTRA_CA_CERTS before Node starts",
    UNABLE_TO_VERIFY_LEAF_SIGNATURE: "name the authority's certificate in NODE_EXTRA_CA_CERTS before Node starts",
};
/** Requests to one gateway, each repeated until it is answered or its deadline has come. */
class Gateway {
    #locate;
    constructor(locate) {
        this.#locate = locate;
    }
    async hasSession() {
        return isSessionToken((await this.#locate()).token);
    }
    async perform(op, deadline, waitSecs = 0, signal) {
        const body = JSON.stringify(op);
        const waitMs = waitSecs * 1000;
        const answer = await this.exchange(deadline, (session) => ({
            method: "POST",
            path: session ? "/ansible/agent/invoke" : "/v1/operations",
            body,
            waitMs,
            signal,
        }));
        return parseJson(answer);
    }
    /** The body of the answer. `plan` is asked for each attempt: the kind of token may change. */
    async exchange(deadline, plan) {
        let delay = FIRST_DELAY_MS;
        let renewed = false;
        for (;;) {
            let problem;
            try {
                const target = await this.#locate();
                const request = plan(isSessionToken(target.token));
                try {
                    return await attempt(target, request, deadline);
                }
                catch (error) {
                    // The clocks differ: the token has expired there, but not here.
                    if (codeOf(error) === "expired_token" && target.expireToken && !renewed) {
                        renewed = true;
                        await target.expireToken();
                        continue;
                    }
                    throw error;
                }
            }
            catch (error) {
                if (!(error instanceof GatepostError) || !isPassing(error))
                    throw error;
                problem = error;
            }
            const pause = Math.max(delay * (0.5 + Math.random()), (problem.retryAfter ?? 0) * 1000);
            if (Date.now() + pause >= deadline)
                throw lateError(problem);
            await sleep(pause);
            delay = Math.min(delay * 2, LONGEST_DELAY_MS);
        }
    }
}
async function attempt(target, request, deadline) {
    const given = Math.min(deadline - Date.now(), ATTEMPT_MS + (request.waitMs ?? 0));
    const ending = new AbortController();
    const timer = setTimeout(() => ending.abort(), Math.max(1, given));
    const stop = () => ending.abort();
    request.signal?.addEventListener("abort", stop);
    try {
        if (request.signal?.aborted)
            stop();
        const response = await fetch(target.url + request.path, {
            method: request.method,
            headers: {
                authorization: `Bearer ${target.token}`,
                "content-type": typeof request.body === "string" ? "application/json" : "application/octet-stream",
            },
            body: request.body ?? null,
            signal: ending.signal,
            // A token goes to the gateway and nowhere else.
            redirect: "error",
            credentials: "omit",
            cache: "no-store",
        });
        const body = await readBody(response);
        if (!response.ok)
            throw failureOf(response.status, body);
        return body;
    }
    catch (error) {
        if (request.signal?.aborted)
            throw new GatepostError("aborted", "the call was aborted");
        if (error instanceof GatepostError)
            throw error;
        throw unreachable(target.url, error, ending.signal.aborted);
    }
    finally {
        clearTimeout(timer);
        request.signal?.removeEventListener("abort", stop);
    }
}
async function readBody(response) {
    const pieces = [];
    let size = 0;
    const reader = response.body?.getReader();
    while (reader) {
        const { done, value } = await reader.read();
        if (done)
            break;
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
function failureOf(status, body) {
    try {
        const failure = parseJson(body);
        if (typeof failure.code === "string" && typeof failure.message === "string") {
            return new GatepostError(failure.code, failure.message, status, failure.retry_after ?? undefined);
        }
    }
    catch {
        // Something in between answered.
    }
    return new GatepostError("unexpected_answer", `HTTP ${status} is not a gateway's answer`, status);
}
function unreachable(url, error, late) {
    const cause = error.cause;
    const advice = TLS_ADVICE[cause?.code ?? ""];
    if (advice) {
        return new GatepostError("untrusted", `the certificate of ${url} is not trusted: ${advice}`);
    }
    const why = late ? "it does not answer" : (cause?.code ?? cause?.message ?? "no connection");
    return new GatepostError("unreachable", `the gateway at ${url} cannot be reached (${why})`);
}
/** Whether the same request may succeed later. */
function isPassing(error) {
    return error.code === "unreachable" || [429, 502, 503, 504].includes(error.status);
}
function lateError(problem) {
    // A refusal of a gateway changed nothing; without an answer, the outcome is unknown.
    if (problem.status === 429 || problem.status === 503)
        return problem;
    const text = `no answer in time, so the outcome is unknown: ${problem.message}`;
    return new GatepostError("deadline_exceeded", text);
}
function parseJson(body) {
    try {
        return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
    }
    catch {
        throw new GatepostError("unexpected_answer", "the answer is not JSON");
    }
}
function isSessionToken(token) {
    return SESSION_PREFIXES.some((prefix) => token.startsWith(prefix));
}
function codeOf(error) {
    return error instanceof GatepostError ? error.code : "";
}
function sleep(ms) {
    return new Promise((resolve) => setTimeout(resolve, ms));
}
function deadlineOf(options) {
    return Date.now() + (options.timeoutSecs ?? DEFAULT_TIMEOUT_SECS) * 1000;
}
/** The same object without the fields that were not given. */
function given(fields) {
    const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
    return Object.fromEntries(entries);
}
/** A UUIDv7: the id of a message or task, chosen here so that a repeated call is recognized. */
export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    let time = Date.now();
    for (let at = 5; at >= 0; at--) {
        bytes[at] = time % 256;
        time = Math.floor(time / 256);
    }
    bytes[6] = 0x70 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return [
        hex.slice(0, 8),
        hex.slice(8, 12),
        hex.slice(12, 16),
        hex.slice(16, 20),
        hex.slice(20),
    ].join("-");
}
/**
 * The session of an external agent, refreshed before it ends.
 *
 * A refresh token works once. So one process at a time uses a store, and each refresh has a random
 * number, which is saved first: if the answer is lost, the same number may be sent again.
 */
export class Session {
    #url;
    #store;
    #renewing = null;
    #held = null;
    constructor(url, store) {
        this.#url = trimUrl(url);
        this.#store = store;
    }
    locate = async () => {
        const token = await this.#currentToken();
        return { url: this.#url, token, expireToken: () => this.#expire(token) };
    };
    async #currentToken() {
        const held = this.#held;
        if (held && held.accessExpiresAt - Date.now() > RENEW_MARGIN_MS)
            return held.accessToken;
        // Calls at the same time share one refresh.
        this.#renewing ??= this.#renew().finally(() => (this.#renewing = null));
        return this.#renewing;
    }
    async #renew() {
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
    async #refresh(held) {
        const attempt = held.attempt ?? newId();
        if (!held.attempt)
            await this.#store.save(JSON.stringify({ ...held, attempt }));
        return this.#ask("refresh", { refreshToken: held.refreshToken, attempt });
    }
    async #ask(action, body) {
        const answer = await attempt({ url: this.#url, token: "" }, { method: "POST", path: `/ansible/agent/auth/${action}`, body: JSON.stringify(body) }, Date.now() + ATTEMPT_MS);
        return parseJson(answer);
    }
    async #expire(token) {
        if (this.#held?.accessToken !== token)
            return;
        const held = { ...this.#held, accessExpiresAt: 0 };
        await this.#store.save(JSON.stringify(held));
        this.#held = null;
    }
}
/** The pin of the gateway's key, which follows the id in an invite if there is one. */
function pinOf(invite) {
    const pin = (invite.split(".")[1] ?? "").slice(16);
    return /^[0-9a-f]{64}$/.test(pin) ? pin : null;
}
function readSession(text) {
    if (text.startsWith(INVITE_PREFIX))
        return null;
    try {
        const held = JSON.parse(text);
        if (typeof held.accessToken === "string" && typeof held.refreshToken === "string")
            return held;
    }
    catch {
        // Reported below.
    }
    throw new GatepostError("unauthorized", "this is neither an invite nor a session: invite the agent again");
}
function trimUrl(url) {
    if (!/^https?:\/\//.test(url)) {
        throw new GatepostError("config_error", `${url} is not a gateway's address; write https://HOST:PORT`);
    }
    return url.replace(/\/+$/, "");
}
/** Calls to one gateway as one agent. */
export class Client {
    name;
    #gateway;
    constructor(options) {
        this.name = options.name;
        const { url, token } = options;
        if (!options.locate && (url === undefined || token === undefined)) {
            throw new GatepostError("config_error", "give `url` and `token`, or `locate`");
        }
        const target = { url: options.locate ? "" : trimUrl(url), token: token ?? "" };
        this.#gateway = new Gateway(options.locate ?? (async () => target));
    }
    /** Do one operation of the mailbox protocol; the other calls are made of this one. */
    async perform(op, options = {}) {
        const wait = options.waitSecs ?? 0;
        return this.#gateway.perform(op, deadlineOf(options) + wait * 1000, wait, options.signal);
    }
    /** The gateway's status. */
    async status(options = {}) {
        const body = await this.#gateway.exchange(deadlineOf(options), (session) => session
            ? { method: "POST", path: "/ansible/agent/invoke", body: '{"op":"status"}' }
            : { method: "GET", path: "/v1/status" });
        return parseJson(body);
    }
    /** Register this agent, so that messages can be sent to it. Returns why its mail goes elsewhere. */
    async register(options = {}) {
        const op = { op: "register", agent: this.name, ...given({ order: options.order }) };
        return (await this.perform(op, options)).problem ?? "";
    }
    // -- messages
    /**
     * Send a message, tracked until its turn has ended. Resolves once the gateway has it on disk, or
     * with `wait` once it is that far. Bytes (`Uint8Array`, `Blob`) and large payloads go as blobs.
     */
    async send(to, payload, options = {}) {
        const deadline = deadlineOf(options);
        const message = {
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
        const op = { op: "send", messages: [message] };
        const [sent] = (await this.#gateway.perform(op, deadline)).results;
        if (!sent)
            throw new GatepostError("unexpected_answer", "the answer has no result");
        throwFailure(sent.error);
        return options.wait ? this.#waitFor(sent, options.wait, deadline) : sent;
    }
    /** Send a message and return the reply. Throws `turn_failed` if the turn failed. */
    async request(to, payload, options = {}) {
        const sent = await this.send(to, payload, { ...options, wait: "processed" });
        if (sent.outcome !== "ok") {
            const why = sent.reason ? `: ${sent.reason}` : "";
            throw new GatepostError("turn_failed", `the turn of ${to} ended with ${sent.outcome}${why}`);
        }
        if (sent.reply_ref && sent.reply === undefined) {
            throw new GatepostError("invalid_request", `the reply is not JSON; download ${sent.reply_ref}`);
        }
        return sent.reply ?? null;
    }
    /** Wait for the outcome of a message that was sent before, and fetch its reply. */
    async awaitOutcome(eventId, options = {}) {
        return this.#waitFor({ event_id: eventId }, options.until ?? "processed", deadlineOf(options));
    }
    async #waitFor(sent, goal, deadline) {
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
            const op = { op: "await", event_id: sent.event_id, wait_secs: wait, until: goal };
            found = (await this.#gateway.perform(op, deadline + 500, wait)).result;
        }
        if (sent.to_agent)
            found.to_agent = sent.to_agent;
        if (found.reply_ref)
            await this.#loadReply(found, deadline);
        return found;
    }
    /** A reply that is not JSON stays where it is. */
    async #loadReply(sent, deadline) {
        const body = await this.#download(sent.reply_ref, deadline);
        try {
            sent.reply = parseJson(body);
        }
        catch {
            // `reply_ref` names it.
        }
    }
    /** Lease mail. Settle each message within its lease, and those of a sender in this order. */
    async receive(options = {}) {
        const mailbox = options.mailbox ?? this.name;
        const op = {
            op: "dequeue",
            mailbox,
            limit: options.limit ?? 1,
            wait_secs: options.waitSecs ?? 0,
            // With its own name, a repeated request gets the messages that it got before.
            consumer: options.consumer ?? newId(),
        };
        const found = await this.perform(op, options);
        return found.messages.map((message) => new Message(message, this));
    }
    async ack(mailbox, receipt, reply, options = {}) {
        const deadline = deadlineOf(options);
        const op = { op: "ack", mailbox, receipts: [receipt] };
        if (reply !== undefined) {
            const { inline, ref } = await this.#attach(reply, deadline, "inline", "ref");
            if (ref !== undefined)
                op.reply_refs = { [receipt]: ref };
            else
                op.replies = { [receipt]: inline };
        }
        throwFailure((await this.#gateway.perform(op, deadline)).failures?.[0]);
    }
    async nack(mailbox, receipt, reason = "", options = {}) {
        const retry = options.retry ?? true;
        const op = {
            op: "nack",
            mailbox,
            receipts: [receipt],
            reason: reason.slice(0, 2000),
            retry,
        };
        throwFailure((await this.perform(op, options)).failures?.[0]);
    }
    /** Extend leases by a full timeout; returns the lease handles that are no longer valid. */
    async extend(mailbox, receipts, options = {}) {
        const answer = await this.perform({ op: "extend", mailbox, receipts }, options);
        return (answer.failures ?? []).map((failure) => failure.subject ?? "");
    }
    // -- blobs
    /** Store a large payload; its digest goes into `payload_ref`. */
    async upload(content, options = {}) {
        return this.#upload(content, deadlineOf(options));
    }
    async download(digest, options = {}) {
        return this.#download(digest, deadlineOf(options));
    }
    async #upload(content, deadline) {
        const body = content instanceof Blob ? content : new Blob([content]);
        const answer = await this.#gateway.exchange(deadline, (session) => ({
            method: "POST",
            path: session ? "/ansible/agent/uploads" : "/v1/blobs",
            body,
            waitMs: deadline - Date.now(),
        }));
        return parseJson(answer);
    }
    async #download(digest, deadline) {
        return this.#gateway.exchange(deadline, (session) => ({
            method: "GET",
            path: `${session ? "/ansible/agent/blobs" : "/v1/blobs"}/${encodeURIComponent(digest)}`,
            waitMs: deadline - Date.now(),
        }));
    }
    /** The payload as a field of a message: inline if it is small JSON, else as an uploaded blob. */
    async #attach(payload, deadline, inline, ref) {
        if (payload instanceof Uint8Array || payload instanceof Blob) {
            return { [ref]: (await this.#upload(payload, deadline)).digest };
        }
        const value = payload === undefined ? null : payload;
        const text = JSON.stringify(value);
        if (text === undefined)
            throw new GatepostError("invalid_request", "this payload has no JSON");
        // A character has at most three bytes in UTF-8.
        if (text.length * 3 <= MAX_INLINE_BYTES)
            return { [inline]: value };
        const bytes = new TextEncoder().encode(text);
        if (bytes.length <= MAX_INLINE_BYTES)
            return { [inline]: value };
        return { [ref]: (await this.#upload(bytes, deadline)).digest };
    }
    // -- tasks
    /** Create a task for an agent, or for one that has the capabilities. */
    async createTask(description, options) {
        const [task] = await this.createTasks(description, options);
        if (!task)
            throw new GatepostError("unexpected_answer", "the answer has no task");
        return task;
    }
    /** Create a task for each of several agents. */
    async createTasks(description, options) {
        const deadline = deadlineOf(options);
        const task = {
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
        const op = { op: "task_create", tasks: [task] };
        const [created] = (await this.#gateway.perform(op, deadline)).results;
        if (!created || created.code) {
            const { code, error, retry_after } = created ?? {};
            throw new GatepostError(code || "unexpected_answer", error ?? "", 400, retry_after ?? undefined);
        }
        return created.tasks ?? [];
    }
    /** A task as it is now. */
    async showTask(taskId, options = {}) {
        const op = { op: "task_await", task_id: taskId, wait_secs: 0 };
        return (await this.perform(op, options)).task;
    }
    /** Wait for the end of a task. `onChange` hears of its progress. */
    async awaitTask(taskId, options = {}) {
        const deadline = deadlineOf(options);
        let known = 0;
        for (;;) {
            const left = (deadline - Date.now()) / 1000;
            const wait = known ? Math.max(0, Math.min(left, MAX_WAIT_SECS)) : 0;
            const op = { op: "task_await", task_id: taskId, wait_secs: wait, known };
            const { task } = await this.#gateway.perform(op, deadline + 500, wait);
            if ((task.updated_at ?? 0) > known)
                options.onChange?.(task);
            known = Math.max(known, task.updated_at ?? 1);
            if (task.ended_at != null)
                return task;
            if (Date.now() >= deadline) {
                const text = `task ${taskId} has not ended in time; it is ${task.state}`;
                throw new GatepostError("deadline_exceeded", text);
            }
        }
    }
    /** Create a task, wait for its end, and return its result. Throws if it did not complete. */
    async runTask(description, options) {
        const deadline = deadlineOf(options);
        const created = await this.createTask(description, options);
        const task = await this.awaitTask(created.id, { timeoutSecs: (deadline - Date.now()) / 1000 });
        if (task.state !== "completed") {
            const why = task.error ? `: ${task.error}` : "";
            throw new GatepostError(task.error_code ?? "task_failed", `task ${task.id} ${task.state}${why}`);
        }
        return task.result_ref
            ? parseJson(await this.download(task.result_ref))
            : (task.result ?? null);
    }
    /** Cancel a task. If another gateway executes it, that one decides. */
    async cancelTask(taskId, reason = "", options = {}) {
        const op = { op: "task_cancel", task_id: taskId, reason: reason.slice(0, 2000) };
        return (await this.perform(op, options)).task;
    }
    /** Report about a task that this agent does; `serve` does so by itself. */
    async reportTask(report, options = {}) {
        const op = { op: "task_report", reports: [report] };
        const refused = (await this.perform(op, options)).refused?.[0];
        if (refused)
            throw new GatepostError(refused.code, refused.error, 409);
    }
    /** Report the end of a task, with a result of any size. */
    async completeTask(taskId, result, options = {}) {
        const deadline = deadlineOf(options);
        const attached = await this.#attach(result, deadline, "result", "result_ref");
        const report = {
            task_id: taskId,
            agent: this.name,
            action: "complete",
            ...attached,
        };
        await this.reportTask(report, { timeoutSecs: (deadline - Date.now()) / 1000 });
    }
    // -- an agent
    /** Handle this agent's mail until `signal` is aborted. Leases are extended meanwhile. */
    async serve(options) {
        if (!options.onMessage && !options.onTask) {
            throw new GatepostError("invalid_request", "give `onMessage` or `onTask`");
        }
        const report = options.onProblem ?? ((problem) => console.error(`gatepost: ${problem}`));
        for (;;) {
            if (options.signal?.aborted)
                return;
            try {
                const problem = await this.register({ order: options.order });
                if (problem)
                    report(`agent ${this.name} gets no mail here: ${problem}`);
                break;
            }
            catch (error) {
                if (!isAway(error))
                    throw error;
                report(error.message);
            }
        }
        // Each worker is a consumer: after a lost answer it gets the same message again.
        const workers = Array.from({ length: options.concurrency ?? 4 }, () => this.#work(options, newId(), report));
        await Promise.all(workers);
    }
    async #work(options, consumer, report) {
        while (!options.signal?.aborted) {
            let found;
            try {
                const signal = options.signal;
                found = await this.receive({ waitSecs: MAX_WAIT_SECS, consumer, ...given({ signal }) });
            }
            catch (error) {
                if (codeOf(error) === "aborted")
                    return;
                if (!isAway(error))
                    throw error;
                report(error.message);
                continue;
            }
            for (const message of found)
                await this.#takeTurn(message, options, report);
        }
    }
    async #takeTurn(message, options, report) {
        try {
            if (message.kind === "task_create")
                await this.#takeTask(message, options, report);
            else
                await this.#takeMessage(message, options, report);
        }
        catch (error) {
            report(`the turn for ${message.id} was not settled: ${reasonOf(error)}`);
        }
    }
    async #takeMessage(message, options, report) {
        const every = Math.max(1000, (message.leaseSecs * 1000) / 3);
        const beat = setInterval(() => void message.keep(), every);
        let reply;
        try {
            if (!options.onMessage)
                throw new Reject(`agent ${this.name} takes tasks only`);
            await message.load();
            reply = await options.onMessage(message);
        }
        catch (error) {
            report(`the turn for ${message.id} failed: ${reasonOf(error)}`);
            await message.nack(reasonOf(error), { retry: !(error instanceof Reject) });
            return;
        }
        finally {
            clearInterval(beat);
        }
        // A reply is never answered, so two agents cannot reply to each other for ever.
        await message.ack(message.kind === "reply" ? undefined : (reply ?? undefined));
    }
    async #takeTask(message, options, report) {
        const task = new Task(message, await message.load(), this);
        const accept = {
            task_id: task.attemptId,
            agent: this.name,
            action: "accept",
            receipt: message.receipt,
        };
        try {
            await this.reportTask(accept);
        }
        catch (error) {
            if (!TASK_HAS_ENDED.includes(codeOf(error)))
                throw error;
            return message.ack();
        }
        const beat = setInterval(() => void task.keep(), TASK_BEAT_MS);
        try {
            if (!options.onTask)
                throw new Reject(`agent ${this.name} takes no tasks`);
            const result = await options.onTask(task);
            if (!task.signal.aborted)
                await this.completeTask(task.attemptId, result);
        }
        catch (error) {
            report(`task ${task.id} failed: ${reasonOf(error)}`);
            await this.#failTask(task, error);
        }
        finally {
            clearInterval(beat);
        }
    }
    async #failTask(task, error) {
        if (task.signal.aborted)
            return;
        await this.reportTask({
            task_id: task.attemptId,
            agent: this.name,
            action: "fail",
            error_code: error instanceof Reject ? "rejected" : "failed",
            error: reasonOf(error),
        });
    }
}
function hasReached(sent, goal) {
    const accepted = goal === "accepted" && sent.accepted_at != null;
    return accepted || sent.processed_at != null || sent.state === "archived" || sent.error != null;
}
function throwFailure(failure) {
    if (failure) {
        throw new GatepostError(failure.code, failure.message, 400, failure.retry_after ?? undefined);
    }
}
function isAway(error) {
    return (error instanceof GatepostError && (codeOf(error) === "deadline_exceeded" || isPassing(error)));
}
/** Why a turn failed, without what looks like a secret. */
function reasonOf(error) {
    const text = error instanceof Error ? error.message || error.name : String(error);
    return text.replace(SECRETS, "$1[redacted]").slice(0, 500);
}
/** A leased message. Settle it with `ack` or `nack` before the lease ends. */
export class Message {
    wire;
    /** Aborted when the lease is lost: another consumer may have the message now. */
    signal;
    #client;
    #ending = new AbortController();
    /** The payload; undefined until `load` if it is a blob. `serve` loads it. */
    payload;
    constructor(wire, client) {
        this.wire = wire;
        this.#client = client;
        this.signal = this.#ending.signal;
        this.payload = this.#digest ? undefined : wire.payload;
    }
    get id() {
        return this.wire.msg_id;
    }
    get from() {
        return this.wire.from;
    }
    /** `message`, `reply` for the answer to a message of this agent, or `task_create`. */
    get kind() {
        return this.wire.event?.kind ?? "message";
    }
    /** The conversation. */
    get corrId() {
        return this.wire.event?.corr_id ?? this.wire.msg_id;
    }
    /** Turns that failed before this one. */
    get attempt() {
        return this.wire.attempt;
    }
    /** The lease handle. */
    get receipt() {
        return this.wire.receipt;
    }
    get leaseSecs() {
        return this.wire.lease_secs ?? 30;
    }
    get #digest() {
        return this.wire.event?.payload_ref ?? null;
    }
    /** The payload, fetched if it is a blob: its JSON, or else its bytes. */
    async load() {
        if (this.payload === undefined && this.#digest) {
            const body = await this.#client.download(this.#digest);
            try {
                this.payload = parseJson(body);
            }
            catch {
                this.payload = body;
            }
        }
        return this.payload;
    }
    /** End the turn well; `reply` goes to the sender. */
    async ack(reply, options = {}) {
        await this.#client.ack(this.wire.to, this.receipt, reply, options);
    }
    /** Fail the turn: the message is delivered again later, or without `retry` is a dead letter. */
    async nack(reason = "", options = {}) {
        await this.#client.nack(this.wire.to, this.receipt, reason, options);
    }
    /** Extend the lease by a full timeout. Returns false, and aborts `signal`, if it is lost. */
    async keep(options = {}) {
        try {
            const lost = await this.#client.extend(this.wire.to, [this.receipt], options);
            if (lost.length)
                this.#ending.abort();
        }
        catch (error) {
            if (!isAway(error))
                this.#ending.abort();
        }
        return !this.signal.aborted;
    }
}
/** A task for this agent. */
export class Task {
    /** The id that its requester knows, at every attempt. */
    id;
    /** The id of this attempt, which reports name. */
    attemptId;
    requester;
    description;
    taskType;
    input;
    /** Aborted when the task has ended in another way, such as by a cancellation. */
    signal;
    #client;
    #ending = new AbortController();
    constructor(message, document, client) {
        const asked = (document ?? {});
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
    async update(progress, note) {
        const report = { task_id: this.attemptId, agent: this.#client.name, action: "update" };
        await this.#client.reportTask({ ...report, ...given({ progress, note }) });
    }
    /** Say that the work goes on; learn if the task has ended in another way. */
    async keep() {
        try {
            await this.update();
        }
        catch (error) {
            if (TASK_HAS_ENDED.includes(codeOf(error)))
                this.#ending.abort();
        }
    }
}
/**
 * A client of the gateway that the environment names, as the Python client finds it. Node only.
 *
 * The address and the token are read anew for each call, so the gateway may come back elsewhere.
 */
export async function connect(name, options = {}) {
    const { env } = nodeProcess();
    const home = options.stateDir ?? env["GATEPOST_HOME"] ?? `${env["HOME"] ?? "."}/.gatepost`;
    const files = await nodeFiles();
    const chosen = [options.stateDir, options.url, options.tokenFile].some((each) => each !== undefined);
    const context = options.context ?? (chosen ? undefined : env["GATEPOST_CONTEXT"]);
    if (context)
        options = await readContext(files, home, context);
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
export function fileStore(file) {
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
async function readContext(files, home, name) {
    let found;
    try {
        found = JSON.parse(await files.readFile(`${home}/contexts.json`, "utf8")).contexts[name];
    }
    catch {
        // Reported below.
    }
    if (!found)
        throw new GatepostError("config_error", `there is no context ${name} in ${home}`);
    const { mode } = await files.stat(found.token_file).catch(() => ({ mode: 0 }));
    if (mode & 0o077) {
        const text = `others on this machine can use ${found.token_file}: run chmod 600 on it`;
        throw new GatepostError("unauthorized", text);
    }
    return { url: found.url, tokenFile: found.token_file };
}
async function readAddress(files, home) {
    try {
        const endpoint = JSON.parse(await files.readFile(`${home}/endpoint.json`, "utf8"));
        return String(endpoint.url);
    }
    catch {
        throw new GatepostError("unreachable", `no gateway runs on ${home}; start one with gatepost up`);
    }
}
async function readSecret(files, file) {
    try {
        return (await files.readFile(file, "utf8")).trim();
    }
    catch (error) {
        const why = error.code ?? "unreadable";
        throw new GatepostError("unauthorized", `the token file ${file} cannot be read (${why})`);
    }
}
function nodeProcess() {
    const found = globalThis.process;
    if (!found?.env) {
        throw new GatepostError("config_error", "there are no files here: use `new Client({ url, token })`");
    }
    return found;
}
async function nodeFiles() {
    // Bundlers for browsers leave an import alone whose name they cannot see.
    const name = ["node:fs", "promises"].join("/");
    return (await import(name));
}
