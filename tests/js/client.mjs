// An ordinary Yjs client: one JSON object a line for all that happens to it.
import process from "node:process";
import WebSocket from "ws";
import { WebsocketProvider } from "y-websocket";
import * as Y from "yjs";

const [url, room] = process.argv.slice(2);
const ticket = process.env.TICKET ?? "";
const say = (event) => process.stdout.write(JSON.stringify(event) + "\n");
let bytes = 0;

class Watched extends WebSocket {
  constructor(...given) {
    super(...given);
    this.on("message", (data) => (bytes += data.length));
    this.on("unexpected-response", (_, response) => {
      let body = "";
      response.on("data", (piece) => (body += piece));
      response.on("end", () => {
        say({ event: "refused", status: response.statusCode, body: JSON.parse(body), bytes });
        process.exit(0);
      });
    });
  }
}

const doc = new Y.Doc();
const records = (map) =>
  Object.fromEntries(
    [...doc.getMap(map).entries()].map(([key, value]) => [key, JSON.parse(value.record)]),
  );
for (const map of ["nodes", "agents"]) {
  doc.getMap(map).observe((change) => {
    if (change.transaction.local) return;
    for (const key of change.keysChanged) say({ event: "change", map, record: records(map)[key] });
  });
}

const protocols = ticket ? ["gatepost", `ticket.${ticket}`] : ["gatepost"];
const provider = new WebsocketProvider(url, room, doc, {
  WebSocketPolyfill: Watched,
  disableBc: true,
  protocols,
});
provider.on("sync", (synced) => {
  if (synced) say({ event: "synced", protocol: provider.ws.protocol, nodes: records("nodes") });
});
provider.on("connection-close", (closed) => {
  say({ event: "closed", code: closed?.code ?? 0 });
  process.exit(0);
});
provider.awareness.on("change", () => {
  const states = [...provider.awareness.getStates().values()];
  say({ event: "present", nodes: states.map((state) => state.nodeId ?? null) });
});
process.stdin.on("data", (command) => {
  if (String(command).startsWith("forge")) doc.getMap("nodes").set("host", { status: "offline" });
});
process.stdin.on("end", () => process.exit(0));
