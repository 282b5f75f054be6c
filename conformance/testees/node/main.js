// A testee in JavaScript with @msgpack/msgpack.
//
// main.js speaks the protocol, batch.js takes batches and events apart, values.js reads what is in them. decode() alone would
// not do: one value that it refuses costs the whole payload, it keeps the last of two equal keys, it puts U+FFFD where a
// string is not UTF-8, and a number that it gives does not say whether it was a float. So wire.js finds where each value
// begins and ends, and the package reads one value at a time.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { readBatch } from "./batch.js";

const library = new URL("./node_modules/@msgpack/msgpack/package.json", import.meta.url);

function say(line) {
  process.stdout.write(JSON.stringify(line) + "\n");
}

say({
  protocol: 1,
  name: "node",
  version: JSON.parse(readFileSync(library, "utf8")).version,
  language: "JavaScript",
  decoder: "@msgpack/msgpack Decoder, useBigInt64",
  dialects: [
    ...["slot6-b2", "slot6", "slot7", "slot8", "slot8-lora", "slot9", "slot10", "slot12", "dynamo"],
    ...["sglang-map1", "sglang-map2", "vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5"],
  ],
});

for await (const line of createInterface({ input: process.stdin })) {
  const { id, payload } = JSON.parse(line);
  try {
    say({ id, ...readBatch(Buffer.from(payload, "base64")) });
  } catch (error) {
    say({ id, error: error.message });
  }
}
