// Numbers as a person reads them: three significant digits, and a unit on each, which no line break parts from it.

const GAP = "\u00a0"; // between a number and its unit
const SPANS = [[86400 * 2, 86400, "days"], [3600, 3600, "h"], [60, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"]];
const MULTIPLES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function number(value, digits = 3) {
  if (!known(value)) return "unknown";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(digits - 1);
  if (size >= 10 ** digits) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : "unknown");

export function duration(seconds) {
  if (!known(seconds)) return "unknown";
  if (seconds === 0) return `0${GAP}s`;
  const [, unit, name] = SPANS.find(([from]) => seconds >= from) ?? [0, 1e-6, "µs"];
  return `${number(seconds / unit)}${GAP}${name}`;
}

export const withUnit = (value, unit) => `${number(value)}${GAP}${unit}`;

export function dollars(value) {
  if (!known(value)) return "no price";
  if (value >= 100) return `$${Math.round(value).toLocaleString("en-US")}`;
  return value >= 0.1 || value === 0 ? `$${value.toFixed(2)}` : `$${number(value, 2)}`;
}

// One unit for all durations of a column or an axis: that in which the middle one is read best.
export function durationsIn(values) {
  const sizes = values.filter((value) => known(value) && value > 0).sort((a, b) => a - b);
  const middle = sizes[sizes.length >> 1];
  const [, unit, name] = SPANS.find(([from]) => middle >= from) ?? (sizes.length ? [0, 1e-6, "µs"] : SPANS[3]);
  const plain = (value) => (known(value) ? number(value / unit) : "unknown");
  return { unit, name, plain, write: (value) => (known(value) ? `${plain(value)}${GAP}${name}` : "unknown") };
}

// Dollars of a column or an axis: whole ones where the largest are hundreds.
export function dollarsIn(values) {
  const most = Math.max(0, ...values.filter(known));
  return (value) => (known(value) && most >= 100 && (value >= 10 || value === 0) ? `$${whole(value)}` : dollars(value));
}

// A quantile of a band between and beyond its three: lognormal on each side of the median, as the service has it.
export function atProbability(band, probability) {
  const z = normalQuantile(Math.max(probability, 1 - probability));
  return band.p50 * ((probability >= 0.5 ? band.p95 : band.p05) / band.p50) ** (z / 1.6448536269514722);
}

function normalQuantile(probability) {
  let [low, high] = [0, 8];
  for (let turn = 0; turn < 50; turn += 1) {
    const z = (low + high) / 2;
    let [term, sum] = [z, z];
    for (let k = 3; k < 250; k += 2) {
      term *= (z * z) / k;
      sum += term;
    }
    if (0.5 + (sum * Math.exp((-z * z) / 2)) / Math.sqrt(2 * Math.PI) < probability) low = z;
    else high = z;
  }
  return (low + high) / 2;
}

export function si(value, unit) {
  if (!known(value)) return "unknown";
  const [by, prefix] = MULTIPLES.find(([from]) => Math.abs(value) >= from) ?? [1, ""];
  return `${number(value / by)}${GAP}${prefix}${unit}`;
}

export const bytes = (value) => si(value, "B");
export function percent(value) {
  if (!known(value)) return "unknown";
  return value > 0 && value < 0.001 ? `<${GAP}0.1${GAP}%` : `${number(100 * value, 2)}${GAP}%`;
}

// A length such as 10B, as people write it.
export function count(value) {
  if (!known(value)) return "unknown";
  const [by, prefix] = [[1e12, "T"], [1e9, "B"], [1e6, "M"]].find(([from]) => value >= from) ?? [1, ""];
  return `${number(value / by, 4)}${prefix}`;
}

// The seconds of a duration such as 24h, undefined where it is none.
export function secondsOf(text) {
  const found = /^([\d.]+)\s*(s|min|h|d|w)$/.exec(String(text ?? "").trim());
  return found ? Number(found[1]) * { s: 1, min: 60, h: 3600, d: 86400, w: 604800 }[found[2]] : undefined;
}

export function chance(value) {
  if (!known(value)) return "unknown";
  if (value >= 0.995) return value === 1 ? "1" : "> 0.99";
  return value > 0 && value < 0.005 ? "< 0.01" : (Math.floor(100 * value + 1e-9) / 100).toFixed(2); // down, as the command line does
}

export function chanceOf(words, value) {
  const found = chance(value);
  return `P(${words}) ${/^[<>]/.test(found) ? found : `= ${found}`}`;
}

export function day(text) {
  return text ? String(text).replace("T", " ").replace(/(\.\d+)?(\+00:00|Z)$/, " UTC") : "";
}

const USUAL = {
  dp: 1, tp: 1, pp: 1, cp: 1, ep: 1, vpp: 1, zero_stage: 0, recompute: "none", sequence_parallel: false,
  sync: "allreduce", parameter_servers: 0, memory_format: "nchw", stale_bound: 0, servers_with_workers: false,
  gradient_bits: 0, partitions: 1, offload: "none", offload_activations: false,
};

// A plan as on the command line, without what every plan has.
export function planWords(plan) {
  return Object.entries(plan)
    .filter(([name, value]) => name !== "memory_format" && value !== undefined && value !== USUAL[name])
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
}

// What was asked, as `name value` for each field that is given; of what is nested in these the names alone.
const FIRST = ["name", "workload", "workloads", "entry", "predictor", "predictors", "system", "searcher", "space"];
const UNSAID = new Set(["schema", "seed", "yes", "retry", "steps"]);

export function askedWords(asked) {
  if (typeof asked !== "object" || asked === null) return text(asked);
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return Object.entries(asked)
    .filter(([name, value]) => !UNSAID.has(name) && value !== null && value !== "" && value !== false)
    .sort(([a], [b]) => place(a) - place(b))
    .map(([name, value]) => (name === "name" ? value : `${name.replaceAll("_", " ")} ${said(name, value)}`))
    .join(" · ");
}

function said(name, value) {
  if (Array.isArray(value)) return value.map((one) => said("", one)).join(", ");
  if (name === "rows" || name === "columns") return whole(value);
  if (typeof value !== "object" || value === null) return typeof value === "string" ? value.replace(/^forerun\.measure\.builtin:/, "") : text(value);
  if (name === "space") return `(${askedWords(value)})`;
  const nested = Object.values(value).some((one) => typeof one === "object" && !Array.isArray(one));
  return nested ? Object.keys(value).join(", ") : Object.entries(value).map(([what, of]) => `${what.replaceAll("_", " ")} ${said("", of)}`).join("; ");
}

// What any cell of a table holds, as text.
export function text(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value, 4);
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}
