// Lists: the runs that are kept, and what the catalogue knows.
import { useMemo, useState } from "preact/hooks";
import { get, page } from "../api.js";
import { bytes, day, dollars, duration, known, number, si, text, whole, withUnit } from "../format.js";
import { Copy, Shown, Table, Text, Words, useAnswer, useForm } from "../parts.jsx";
import { link } from "../route.js";

const RUN_COLUMNS = [
  { name: "workload", label: "workload" },
  { name: "device", label: "device" },
  { name: "devices", label: "devices", figure: true },
  { name: "global_batch", label: "global batch", figure: true },
  { name: "step_time_s", label: "step", figure: true, show: (run) => (known(run.step_time_s) ? duration(run.step_time_s) : "") },
  { name: "time_to_train_s", label: "whole run", figure: true, show: (run) => (known(run.time_to_train_s) ? duration(run.time_to_train_s) : "") },
  { name: "samples_per_s", label: "samples/s", figure: true, show: (run) => (known(run.samples_per_s) ? number(run.samples_per_s) : "") },
  { name: "memory_gb", label: "memory", figure: true, show: (run) => (known(run.memory_gb) ? bytes(run.memory_gb * 1e9) : "") },
  { name: "framework", label: "framework" },
  { name: "status", label: "status" },
  { name: "ref", label: "origin", grow: true, show: (run) => run.ref ?? run.source ?? run.origin ?? "" },
];

// Columns that say something of at least one row.
const filled = (columns, rows) => columns.filter((one) => rows.some((row) => (one.show ? one.show(row) : row[one.name] ?? "") !== ""));

export function runColumns(rows) {
  return filled(RUN_COLUMNS, rows);
}

export function Runs({ query }) {
  const form = useForm("runs", query);
  const conditions = (form.given.where ?? "").split(";").map((one) => one.trim()).filter(Boolean);
  const path = `runs?${new URLSearchParams([["limit", "100"], ...conditions.map((one) => ["where", one])])}`;
  const answer = useAnswer(async (signal) => {
    const { body, next } = await page(path, { signal });
    return { ...body, next };
  }, path);
  return (
    <>
      <h1>Runs that are kept</h1>
      <form class="bar-form" onSubmit={form.submit} aria-label="Filter of the runs">
        <Text label="Conditions, apart by ;" name="where" form={form} placeholder="workload=resnet50; devices<=8" wide />
        <button>Filter</button>
        <Copy />
      </form>
      <Shown answer={answer} words="Reading the store">{(found) => <Kept found={found} key={path} />}</Shown>
    </>
  );
}

function Kept({ found }) {
  const [more, setMore] = useState({ rows: [], next: found.next });
  const rows = [...found.runs, ...more.rows];
  const load = async () => {
    const { body, next } = await page(more.next);
    setMore({ rows: [...more.rows, ...body.runs], next });
  };
  if (!found.count) {
    return (
      <section>
        <p>{found.why_none.length ? "No run meets these conditions." : "No run is kept yet."}</p>
        <Words title="Why" items={found.why_none} />
        {!found.why_none.length && <p>Bring some in: <code>forerun runs import RUNS.csv</code>, <code>POST /v1/runs</code>, or measure: <code>forerun profile CAMPAIGN.yaml</code>.</p>}
      </section>
    );
  }
  return (
    <>
      <Table caption={`${whole(found.count)} runs, newest first, ${rows.length} shown`} columns={runColumns(rows)} rows={rows} most={1000} keyOf={(run) => run.run_key} />
      {more.next && <button type="button" class="plain" onClick={load}>Next 100</button>}
    </>
  );
}

const LISTS = {
  devices: ["Devices", [
    { name: "id", label: "device", show: (row) => <><b>{row.id}</b> <span class="quiet">{row.name}</span></>, grow: true },
    { name: "kind", label: "kind" },
    { name: "year", label: "year", figure: true },
    { name: "memory_bytes", label: "memory", figure: true, show: (row) => bytes(row.memory_bytes) },
    { name: "memory_bytes_per_second", label: "memory rate", figure: true, show: (row) => si(row.memory_bytes_per_second, "B/s") },
    { name: "bf16_flops", label: "bf16", figure: true, show: (row) => si(row.bf16_flops, "FLOP/s") },
    { name: "link_bytes_per_second", label: "link", figure: true, show: (row) => (row.link_bytes_per_second ? si(row.link_bytes_per_second, "B/s") : "none") },
    { name: "watts", label: "power", figure: true, show: (row) => withUnit(row.watts, "W") },
    { name: "checked", label: "figures", sort: (row) => checked(row), show: (row) => checked(row) },
  ]],
  instances: ["Instances and prices", [
    { name: "name", label: "instance", grow: true },
    { name: "region", label: "region" },
    { name: "device", label: "device" },
    { name: "device_count", label: "devices", figure: true },
    { name: "dollars_per_hour", label: "on demand, an hour", figure: true, show: (row) => dollars(row.dollars_per_hour) },
    { name: "spot_dollars_per_hour", label: "spot, an hour", figure: true, show: (row) => dollars(row.spot_dollars_per_hour) },
    { name: "network_bytes_per_second", label: "network", figure: true, show: (row) => si(row.network_bytes_per_second, "B/s") },
    { name: "source", label: "source and date of the price" },
  ]],
  workloads: ["Workloads", [
    { name: "name", label: "workload", show: (row) => <a href={link("ask", { workload: row.name })}>{row.name}</a> },
    { name: "family", label: "family" },
    { name: "sample", label: "sample" },
    { name: "description", label: "description", grow: true },
    { name: "source", label: "source" },
  ]],
};

function checked(row) {
  const facts = Object.values(row.sources ?? {});
  const sure = facts.filter((one) => one.verified).length;
  return facts.length ? `${sure} of ${facts.length} verified` : "";
}

export function Catalogue({ query }) {
  const list = LISTS[query.get("list")] ? query.get("list") : "devices";
  const form = useForm("catalogue", query, { list });
  const [words, columns] = LISTS[list];
  const answer = useAnswer((signal) => get(list, { signal }), list);
  return (
    <>
      <h1>Catalogue</h1>
      <nav class="tabs" aria-label="Lists">
        {Object.entries(LISTS).map(([name, [title]]) => (
          <a key={name} href={link("catalogue", { list: name })} aria-current={name === list ? "page" : undefined}>{title}</a>
        ))}
      </nav>
      <form class="bar-form" onSubmit={form.submit} aria-label="Search">
        <Text label={`Search ${words.toLowerCase()}`} name="search" form={form} placeholder="h100, us-east-1 …" />
        <Copy />
      </form>
      <Shown answer={answer} words="Reading the catalogue">
        {(found) => found[list] && <Searched title={words} rows={found[list]} columns={columns} search={form.values.search ?? ""} key={list} />}
      </Shown>
    </>
  );
}

function Searched({ title, rows, columns, search }) {
  const texts = useMemo(() => rows.map((row) => {
    const { sources, ...rest } = row;
    return Object.values(rest).map(text).join(" ").toLowerCase();
  }), [rows]);
  const wanted = search.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const kept = rows.filter((_, i) => wanted.every((one) => texts[i].includes(one)));
  return <Table caption={`${title}: ${kept.length} of ${rows.length}`} columns={columns} rows={kept} most={100} />;
}

// What a route has that may not be there: the newest lines of the audit log.
export function Audit() {
  const answer = useAnswer(async (signal) => {
    try {
      const { body, next } = await page("audit?limit=200", { signal });
      return { lines: body.lines, next };
    } catch (error) {
      if (error.status === 404) return { none: error };
      throw error;
    }
  }, "audit");
  return (
    <>
      <h1>Audit log</h1>
      <p class="quiet">One line for each prediction: when, who, the hash of what was asked, the model and the lists of prices.</p>
      <Shown answer={answer} words="Reading the log">{(found) => (found.none ? <NoLog problem={found.none} /> : <Lines found={found} />)}</Shown>
    </>
  );
}

function NoLog({ problem }) {
  return (
    <section class="none">
      <p>No audit log is kept by this service ({problem.found}).</p>
      <p>Start it with one: <code>forerun serve --audit audit.jsonl</code>. It gets one line of JSON for each prediction.</p>
    </section>
  );
}

const LINES = [
  { name: "time", label: "time", show: (row) => day(row.time) },
  { name: "client", label: "token or address" },
  { name: "path", label: "path" },
  { name: "status", label: "status", figure: true },
  { name: "inputs", label: "hash of the inputs", show: (row) => <code title={row.inputs}>{String(row.inputs ?? "").slice(0, 16)}</code> },
  { name: "model", label: "model" },
  { name: "prices", label: "prices", grow: true, show: (row) => <Lists words={String(row.prices ?? "")} /> },
];

function Lists({ words }) {
  const every = words.split(", ");
  return every.length < 3 ? words : <details><summary>{every.length} lists of prices</summary>{words}</details>;
}

function Lines({ found }) {
  const [more, setMore] = useState({ rows: [], next: found.next });
  const rows = [...found.lines, ...more.rows];
  const load = async () => {
    const { body, next } = await page(more.next);
    setMore({ rows: [...more.rows, ...body.lines], next });
  };
  return (
    <>
      <Table caption="Newest first" columns={LINES} rows={rows} most={1000} />
      {more.next && <button type="button" class="plain" onClick={load}>Older lines</button>}
    </>
  );
}
