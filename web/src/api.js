// The service's REST interface under /v1: the token, questions, errors that say asked, found and next, and events.

const TOKEN = "forerun-token";
const kept = new Map(); // answers by what was asked, for this page's life

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
    kept.clear();
    dispatchEvent(new Event("forerun-token"));
  },
};

export class Problem extends Error {
  constructor(status, { asked = "a request", found = "no answer", next = "try again" } = {}) {
    super(`${asked}: ${found}; ${next}`);
    Object.assign(this, { status, asked, found, next });
  }
}

const noAnswer = (path) => new Problem(0, {
  asked: path, found: "the service does not answer", next: "see whether `forerun serve` still runs, then ask again",
});

// Problems that pass by themselves, as a service starts again or has time.
export const passes = (problem) => problem instanceof Problem && [0, 429, 502, 503, 504].includes(problem.status);

// Milliseconds before the next try, after so many that failed.
export const pauseAfter = (tries) => Math.min(1000 * 2 ** tries, 10000);

const slept = (pause) => new Promise((go) => setTimeout(go, pause));

// Asks until there is an answer, as long as the problem is one that passes; heard: each such problem.
export async function answered(ask, signal, heard) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await ask();
    } catch (error) {
      if (signal.aborted || !passes(error)) throw error;
      heard(error);
    }
    await slept(pauseAfter(tries));
    signal.throwIfAborted();
  }
}

async function reached(path, options) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  let reply;
  try {
    reply = await fetch(`v1/${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw noAnswer(path);
  }
  if (reply.ok) {
    dispatchEvent(new CustomEvent("forerun-answered", { detail: { path } }));
    return reply;
  }
  let found = { found: `status ${reply.status}` };
  try {
    found = await reply.json();
  } catch {
    // a proxy's page; its status says what is known
  }
  // A token that may not is as good as none: another may be typed in.
  if (reply.status === 401 || (reply.status === 403 && token.get())) {
    dispatchEvent(new CustomEvent("forerun-token-needed", { detail: { path, status: reply.status } }));
  }
  throw new Problem(reply.status, found);
}

export async function get(path, { signal, fresh } = {}) {
  if (!fresh && kept.has(path)) return kept.get(path);
  const body = await (await reached(path, { signal })).json();
  kept.set(path, body);
  return body;
}

// One page of a list, with the path of the next page or "".
export async function page(path, { signal } = {}) {
  const reply = await reached(path, { signal });
  const link = /<\/v1\/([^>]*)>; *rel="next"/.exec(reply.headers.get("link") ?? "");
  return { body: await reply.json(), next: link ? link[1] : "" };
}

export async function post(path, body, { signal, headers } = {}) {
  const sent = JSON.stringify(body);
  const key = `${path} ${sent}`;
  // A model may be fitted anew under its name.
  const question = !path.startsWith("tasks") && path !== "runs" && !sent.includes('"model"');
  if (question && kept.has(key)) return kept.get(key);
  const reply = await reached(path, {
    method: "POST", body: sent, signal, headers: { "content-type": "application/json", ...headers },
  });
  const answer = await reply.json();
  if (question) kept.set(key, answer);
  return answer;
}

const FORMS = { json: "application/json", yaml: "application/yaml", yml: "application/yaml", onnx: "application/octet-stream" };

// A workload's file, kept by the service: its answer has the name by which questions ask for it.
export async function upload(file, { signal } = {}) {
  const [, name, end] = /^(.*?)(?:\.([^.]*))?$/.exec(file.name);
  const type = FORMS[(end ?? "").toLowerCase()];
  if (!type) throw new Problem(415, { asked: file.name, found: "its name ends in none of .onnx, .json, .yaml and .yml", next: "choose a file of these forms" });
  const reply = await reached(`workloads?${new URLSearchParams({ name })}`, {
    method: "POST", body: file, signal, headers: { "content-type": type },
  });
  return reply.json();
}

const SILENCE = 45000; // milliseconds; a stream that lives says something every 15 s

// Server-sent events by fetch, so that the token goes in a header. Calls each(event, data) until the
// stream ends; a stream that breaks is taken up after the last event. heard: the problem as it breaks, null as it is there.
export async function events(path, each, signal, heard) {
  let last = "";
  for (let tries = 0; ; tries += 1) {
    try {
      const headers = { accept: "text/event-stream", ...(last && { "last-event-id": last }) };
      const reply = await reached(path, { signal, headers });
      heard(null);
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const silent = setTimeout(() => reader.cancel(), SILENCE);
        const { value, done } = await reader.read().finally(() => clearTimeout(silent));
        if (done) break;
        tries = 0;
        const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").map((line) => {
            const [name, ...words] = line.split(":");
            return [name, words.join(":").replace(/^ /, "")];
          }));
          if (fields.id) last = fields.id;
          if (!fields.data) continue;
          each(fields.event ?? "message", JSON.parse(fields.data));
          if (fields.event === "end") return;
        }
      }
    } catch (error) {
      if (signal.aborted || (error instanceof Problem && !passes(error))) throw error;
      heard(error instanceof Problem ? error : noAnswer(path));
    }
    await slept(pauseAfter(tries));
    if (signal.aborted) return;
  }
}
