// Sends the requests that it reads from standard input with Node's fetch, one after another, and prints the answers.
import { readFileSync } from "node:fs";

const answers = [];
for (const call of JSON.parse(readFileSync(0, "utf-8"))) {
  const options = { method: call.method, headers: call.headers };
  if (call.body !== null) {
    const body = Buffer.from(call.body, "base64");
    options.body = call.chunked ? new Blob([body]).stream() : body;
    if (call.chunked) options.duplex = "half";
  }
  const response = await fetch(call.url, options);
  const body = Buffer.from(await response.arrayBuffer()).toString("base64");
  answers.push({ status: response.status, headers: Object.fromEntries(response.headers), body });
}
console.log(JSON.stringify(answers));
