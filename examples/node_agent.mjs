// An agent in Node: replies to messages, and does tasks with progress.
//
//     node examples/node_agent.mjs &
//     gatepost send translator '{"text": "hello"}' --json-payload --wait processed
//     gatepost task create translator "three files" --input '["a", "b", "c"]' --wait
//
// It finds the gateway by GATEPOST_URL and GATEPOST_TOKEN_FILE, or on ~/.gatepost.
import process from "node:process";
import { connect, Reject } from "../clients/typescript/gatepost.js";

const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort());

const client = await connect("translator");
await client.serve({
  signal: stop.signal,
  onMessage: (message) => {
    const text = message.payload?.text;
    // A message that can never succeed. Any other error means "try again".
    if (typeof text !== "string") throw new Reject("there is no text to translate");
    return { text: text.toUpperCase() };
  },
  onTask: async (task) => {
    const done = [];
    for (const file of task.input) {
      if (task.signal.aborted) return null;
      done.push(file.toUpperCase());
      await task.update(done.length / task.input.length, `translated ${file}`);
    }
    return done;
  },
});
