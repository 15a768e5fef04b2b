// Yjs documents from updates: for each line of updates in hex, one line with what the document shows.
import process from "node:process";
import { createInterface } from "node:readline";
import * as Y from "yjs";

for await (const line of createInterface({ input: process.stdin })) {
  const { maps, updates } = JSON.parse(line);
  const doc = new Y.Doc();
  const shown = Object.fromEntries(maps.map((map) => [map, doc.getMap(map)]));
  for (const update of updates) Y.applyUpdate(doc, Buffer.from(update, "hex"));
  const clocks = [...Y.decodeStateVector(Y.encodeStateVector(doc))].map((pair) => pair.map(String));
  const pending = doc.store.pendingStructs !== null || doc.store.pendingDs !== null;
  process.stdout.write(JSON.stringify({ shown, clocks, pending }) + "\n");
}
