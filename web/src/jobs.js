// Questions: what a form holds, as the body of a request; and clusters by their text.

export const UNITS = ["tokens", "epochs", "samples", "steps"];
const NUMBERS = new Set(["global_batch", "micro_batch", "seq_len", "image_size", "price", "confidence", "max_devices"]);
const LISTS = new Set(["clusters", "devices", "exclude", "providers"]);

// The body of a job from texts by name; `count` and `unit` say its length. Blanks are left out.
export function bodyOf(values) {
  const body = {};
  for (const [name, raw] of Object.entries(values)) {
    const value = String(raw ?? "").trim();
    if (!value || name === "count" || name === "unit") continue;
    if (LISTS.has(name)) body[name] = value.split(/[\s,]+/);
    else if (NUMBERS.has(name) && Number.isFinite(Number(value))) body[name] = Number(value);
    else body[name] = value;
  }
  const count = String(values.count ?? "").trim();
  if (count) {
    const unit = UNITS.includes(values.unit) ? values.unit : UNITS[0];
    body[unit] = Number.isFinite(Number(count)) ? Number(count) : count;
  }
  return body;
}

// NODESxDEVICESxDEVICE or NODESxINSTANCE, taken apart; null where it is neither.
export function clusterParts(text) {
  const found = /^(\d+)x(?:(\d+)x)?(.+)$/.exec(String(text ?? "").trim());
  return found && { nodes: Number(found[1]), each: found[2] ? Number(found[2]) : 0, what: found[3] };
}

// Clusters like this one with more and fewer devices or machines, in powers of two.
export function ladder(text, most = 64) {
  const parts = clusterParts(text);
  if (!parts) return [];
  const { nodes, each, what } = parts;
  const made = [];
  for (let n = 1; each && n < each; n *= 2) made.push({ count: n, cluster: `1x${n}x${what}` });
  for (let n = 1; n <= Math.max(most, nodes); n *= 2) {
    made.push({ count: n * (each || 1), cluster: each ? `${n}x${each}x${what}` : `${n}x${what}` });
  }
  if (!made.some((one) => one.count === nodes * (each || 1))) {
    made.push({ count: nodes * (each || 1), cluster: text });
    made.sort((a, b) => a.count - b.count);
  }
  return made;
}

// What completes a cluster's text: after counts, the names that may follow them.
export function clusterNames(text, devices, machines) {
  const counts = /^(\d+x)?(\d+x)?/.exec(text);
  const nodes = counts[1] ?? "1x";
  const each = counts[2] ?? "8x";
  const made = devices.map((id) => `${nodes}${each}${id}`);
  return counts[2] ? made : [...made, ...machines.map((name) => `${nodes}${name}`)];
}
