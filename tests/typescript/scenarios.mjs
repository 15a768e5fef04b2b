// What a program in Node does with the client: `node scenarios.mjs NAME ARGUMENT…`.
// Each scenario prints one JSON object a line.
import process from "node:process";
import { connect, Client, GatepostError, Reject } from "../../clients/typescript/gatepost.js";

const say = (event) => process.stdout.write(JSON.stringify(event) + "\n");
const [scenario, ...args] = process.argv.slice(2);

/** Aborts when standard input says a line, or ends. */
function untilTold() {
  const told = new AbortController();
  process.stdin.once("data", () => told.abort());
  process.stdin.once("end", () => told.abort());
  return told.signal;
}

async function refusal(call) {
  const began = Date.now();
  try {
    return { answer: await call() };
  } catch (error) {
    if (!(error instanceof GatepostError)) throw error;
    return { code: error.code, message: error.message, ms: Date.now() - began };
  }
}

const scenarios = {
  async request(to, payload) {
    const client = await connect("node");
    say({ reply: await client.request(to, JSON.parse(payload)) });
  },

  async send_one_by_one(to, count) {
    const client = await connect("node");
    for (let n = 0; n < Number(count); n++) {
      const sent = await client.send(to, n, { timeoutSecs: 60 });
      say({ sent: n, id: sent.event_id });
    }
  },

  /** The first answer to each kind of call is lost on its way. */
  async lost_answers(to) {
    const client = await connect("node");
    const real = globalThis.fetch;
    const lost = new Set();
    globalThis.fetch = async (url, options) => {
      const response = await real(url, options);
      const kind = typeof options.body === "string" ? JSON.parse(options.body).op : String(url);
      if (!lost.has(kind)) {
        lost.add(kind);
        await response.arrayBuffer();
        throw new TypeError("fetch failed", { cause: { code: "ECONNRESET" } });
      }
      return response;
    };
    const sent = await client.send(to, "once");
    const task = await client.createTask("once", { to });
    const big = await client.send(to, "x".repeat(1_000_000));
    const mail = await client.receive({ mailbox: to, limit: 10 });
    for (const each of mail) await each.ack("done");
    say({ lost: [...lost], sent, task, big, ids: mail.map((each) => each.id) });
  },

  async serve(name, concurrency) {
    const client = await connect(name);
    await client.serve({
      concurrency: Number(concurrency ?? 4),
      signal: untilTold(),
      onProblem: (problem) => say({ problem }),
      onMessage: async (message) => {
        say({ took: message.payload, from: message.from, corr: message.corrId });
        if (message.payload === "bad") throw new Error("the disk is full");
        if (message.payload === "leak") throw new Error("Authorization: Bearer hunter2 is wrong");
        if (message.payload === "wrong") throw new Reject("not a job for me");
        if (message.payload?.waitMs)
          await new Promise((go) => setTimeout(go, message.payload.waitMs));
        return { echo: message.payload };
      },
      onTask: async (task) => {
        say({ task: task.id, description: task.description, input: task.input });
        if (task.description === "endless") {
          await new Promise((stop) => task.signal.addEventListener("abort", stop));
          say({ stopped: task.id });
          return null;
        }
        await task.update(0.5, "half way");
        if (task.description === "fail") throw new Error("no such index");
        return { sum: task.input.reduce((a, b) => a + b, 0) };
      },
    });
    say({ ended: true });
  },

  async leases(box) {
    const client = await connect(box);
    const [first] = await client.receive({ waitSecs: 5 });
    say({
      took: first.payload,
      attempt: first.attempt,
      lost: await client.extend(box, [first.receipt]),
    });
    await first.nack("not yet");
    const stale = await refusal(() => first.ack());
    const [again] = await client.receive({ waitSecs: 10 });
    await again.ack();
    const kept = await first.keep();
    say({ stale: stale.code, attempt: again.attempt, kept, aborted: first.signal.aborted });
  },

  async blobs(to) {
    const client = await connect("node");
    const bytes = crypto.getRandomValues(new Uint8Array(60_000));
    const stored = await client.upload(bytes);
    const back = await client.download(stored.digest);
    const same = Buffer.compare(Buffer.from(back), Buffer.from(bytes)) === 0;
    const text = "é".repeat(400_000);
    const reply = await client.request(to, text);
    say({ digest: stored.digest, size: stored.size, same, echoed: reply.echo === text });
    await client.send("bytes", bytes);
    const [message] = await client.receive({ mailbox: "bytes" });
    const raw = await message.load();
    say({ raw: raw instanceof Uint8Array && raw.length });
    await message.ack();
  },

  async tasks(to) {
    const client = await connect("node");
    const seen = [];
    const task = await client.createTask("add", { to, input: [1, 2, 3] });
    const ended = await client.awaitTask(task.id, {
      onChange: (each) => seen.push(each.progress ?? 0),
    });
    say({ state: ended.state, result: ended.result, seen });
    say({ result: await client.runTask("add", { to, input: [4, 5] }) });
    say(await refusal(() => client.runTask("fail", { to, input: [] })));
    const endless = await client.createTask("endless", { to });
    while ((await client.showTask(endless.id)).state !== "running") {
      await new Promise((go) => setTimeout(go, 20));
    }
    await client.cancelTask(endless.id, "enough");
    const { state } = await client.awaitTask(endless.id);
    say({ state });
  },

  async deadlines(to) {
    const client = await connect("node");
    say(await refusal(() => client.request(to, "nobody takes it", { timeoutSecs: 1 })));
    say(await refusal(() => client.send("unknown-agent", 1)));
    const url = process.env.NOWHERE;
    const away = new Client({ name: "node", url, token: "t" });
    say(await refusal(() => away.send(to, 1, { timeoutSecs: 1 })));
    say(await refusal(() => new Client({ name: "node", url: "localhost:1", token: "t" })));
  },

  async frozen(to) {
    const client = await connect("node");
    say({ ready: true });
    await new Promise((go) => process.stdin.once("data", go));
    say(await refusal(() => client.send(to, 1, { timeoutSecs: 2 })));
  },

  async hostile(...urls) {
    for (const url of urls) {
      const client = new Client({ name: "node", url, token: "s3cret" });
      say(await refusal(() => client.send("bob", 1, { timeoutSecs: 3 })));
    }
  },

  async key(to, key) {
    const client = await connect("node");
    const send = (payload) => client.send(to, payload, { idempotencyKey: key });
    const ids = [(await send("pay")).event_id, (await send("pay")).event_id];
    const task = () => client.createTask("pay", { to, idempotencyKey: `${key}-task` });
    const tasks = [(await task()).id, (await task()).id];
    say({ ids, tasks, other: (await refusal(() => send("pay more"))).code });
  },

  async session(name, to) {
    const client = await connect(name);
    const replies = await Promise.all([1, 2, 3].map((n) => client.request(to, n)));
    const status = await client.status();
    const other = await refusal(() => client.send(to, "as another", { from: "boss" }));
    const stored = await client.upload("y".repeat(700_000));
    const big = await client.request(to, "z".repeat(700_000));
    say({
      replies,
      node: status.node_id,
      other: other.code,
      size: stored.size,
      big: big.echo.length,
    });
  },
};

await scenarios[scenario](...args);
process.exit(0);
