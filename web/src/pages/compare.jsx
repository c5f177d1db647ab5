// Compare: up to eight jobs side by side: the fastest, the cheapest, and how surely.
import { useEffect, useState } from "preact/hooks";
import { post } from "../api.js";
import { bytes, chance, dollarsIn, durationsIn, known, number, percent, planWords } from "../format.js";
import { bodyOf } from "../jobs.js";
import { Band, Choice, Cluster, Copy, FRAMEWORKS, Length, Shown, Table, Text, Words, Workload, useAnswer } from "../parts.jsx";
import { go, link } from "../route.js";

const MOST = 8;
const EMPTY = { unit: "tokens" };
const EXAMPLE = ["4x8xh100-sxm-80gb", "4x8xa100-sxm-80gb", "4xaws:p5.48xlarge"].map((cluster) =>
  new URLSearchParams({ workload: "llama3-8b", cluster, count: "10B", unit: "tokens" }).toString());

const written = (jobs) => jobs.map((job) => new URLSearchParams(Object.entries(job).filter(([, v]) => v)).toString());

export function Compare({ query }) {
  const texts = query.getAll("job");
  const key = texts.join("\n");
  const given = texts.map((text) => Object.fromEntries(new URLSearchParams(text)));
  const [jobs, setJobs] = useState([]);
  useEffect(() => setJobs(given.length ? given : [EMPTY, EMPTY]), [key]);
  const set = (index) => (name, value) => setJobs((before) => before.map((job, i) => (i === index ? { ...job, [name]: value } : job)));
  const answer = useAnswer(given.length ? (signal) => post("compare", { jobs: given.map(bodyOf) }, { signal }) : null, key);
  const submit = (event) => {
    event.preventDefault();
    go("compare", { job: written(jobs) });
    scrollTo(0, 0); // the answer stands above the form
  };
  return (
    <>
      <h1>Which of these is faster, which cheaper, and how surely?</h1>
      {given.length > 0 ? <Shown answer={answer}>{(found) => <Side found={found} />}</Shown>
        : <p><a href={link("compare", { job: EXAMPLE })}>For example: llama3-8b on three clusters</a></p>}
      <form onSubmit={submit} aria-label="The jobs">
        <div class="jobs">
          {jobs.map((values, index) => {
            const form = { values, set: set(index) };
            return (
              <fieldset key={index}>
                <legend>Job {index + 1}</legend>
                <Workload form={form} />
                <Cluster form={form} hint="" />
                <Length form={form} />
                <div class="pair">
                  <Text label="Global batch" name="global_batch" form={form} placeholder="usual" />
                  <Text label="Precision" name="precision" form={form} list={["bf16", "fp16", "fp32", "fp8"]} placeholder="usual" />
                </div>
                <Text label="Plan" name="plan" form={form} placeholder="the best one" />
                <Choice label="Framework" name="framework" form={form} options={FRAMEWORKS.map((f) => [f, f || "any usual one"])} />
                {jobs.length > 1 && <button type="button" class="plain" onClick={() => setJobs(jobs.filter((_, i) => i !== index))}>Remove job {index + 1}</button>}
              </fieldset>
            );
          })}
        </div>
        <div class="row">
          <button>Compare</button>
          <button type="button" class="plain" disabled={jobs.length >= MOST} onClick={() => setJobs([...jobs, { ...(jobs.at(-1) ?? EMPTY) }])}>Add a job like the last</button>
          <span class="quiet">{jobs.length} of {MOST}</span>
          {given.length > 0 && <Copy />}
        </div>
      </form>
    </>
  );
}

const asked = ({ workload, cluster, plan, length }) => ({
  workload: workload.name, cluster: cluster.name, plan: planWords(plan).split(" ").filter((w) => !w.startsWith("global_batch")).join(","),
  global_batch: plan.global_batch, precision: workload.precision, framework: workload.framework, count: length.count, unit: length.unit,
});

function Side({ found }) {
  const { jobs, names, best, beats } = found;
  const most = (name) => Math.max(...jobs.map((job) => job[name]?.p95 ?? 0));
  const [slowest, dearest] = [most("wall_seconds"), most("dollars")];
  const { write: time } = durationsIn(jobs.map((job) => job.wall_seconds?.p50));
  const cost = dollarsIn(jobs.map((job) => job.dollars?.p50));
  const rows = jobs.map((job, index) => ({ job, index, name: names[index] }));
  const marks = (index) => [best.time === index && "fastest", best.cost === index && "cheapest"].filter(Boolean).join(", ");
  const surely = (what) => ({ index }) => (best[what] === null || best[what] === undefined ? "" : best[what] === index ? `${what === "time" ? "fastest" : "cheapest"}` : chance(beats[what]?.[index]?.[best[what]]));
  const columns = [
    { name: "name", label: "job", grow: true, show: (row) => <><b>{row.name}</b> <span class="quiet">{planWords(row.job.plan)}</span></> },
    { name: "time", label: "time", sort: (row) => row.job.wall_seconds?.p50, show: (row) => <span class="cell"><b>{time(row.job.wall_seconds?.p50)}</b><Band band={row.job.wall_seconds} write={time} most={slowest} /></span> },
    { name: "cost", label: "cost", sort: (row) => row.job.dollars?.p50, show: (row) => <span class="cell"><b>{cost(row.job.dollars?.p50)}</b><Band band={row.job.dollars} write={cost} most={dearest} /></span> },
    { name: "faster", label: "P(faster than the best)", figure: true, sort: (row) => beats.time?.[row.index]?.[best.time] ?? 1, show: surely("time") },
    { name: "cheaper", label: "P(cheaper than the best)", figure: true, sort: (row) => beats.cost?.[row.index]?.[best.cost] ?? 1, show: surely("cost") },
    { name: "memory", label: "memory", figure: true, sort: (row) => row.job.peak_bytes?.p50, show: (row) => `${bytes(row.job.peak_bytes?.p50)} of ${bytes(row.job.cluster.device_memory_bytes)}` },
    { name: "fits", label: "P(fits)", figure: true, sort: (row) => row.job.fits, show: (row) => chance(row.job.fits) },
    { name: "rate", label: "samples/s", figure: true, sort: (row) => row.job.samples_per_second, show: (row) => number(row.job.samples_per_second) },
    { name: "mfu", label: "MFU", figure: true, sort: (row) => row.job.mfu, show: (row) => percent(row.job.mfu) },
  ];
  const said = rows.filter((row) => marks(row.index)).map((row) => `${row.name}: ${marks(row.index)}`).join("; ");
  return (
    <>
      <h2 aria-live="polite">{said || "Side by side"}</h2>
      <p class="quiet">Jobs share errors, so P(one is faster than another) is surer than their bands suggest. They differ in {found.differs.join(", ") || "nothing"}.</p>
      <Table caption="Jobs side by side (bars on one scale: 5–95 %)" columns={columns} rows={rows} keyOf={(row) => row.index} chosen={(row) => Boolean(marks(row.index))} />
      <Words title="Refused" items={found.refused.map((one) => `${one.job}: ${one.reason}`)} />
      {jobs.length > 2 && known(beats.time?.[0]?.[1]) && <Pairs names={names} beats={beats} />}
      <Words title="Warnings" items={[...new Set(jobs.flatMap((job, i) => job.warnings.map((words) => `${names[i]}: ${words}`)))]} open={false} />
      <p class="row">{jobs.map((job, i) => <a key={i} href={link("ask", asked(job))}>Ask about {names[i]}</a>)}</p>
    </>
  );
}

function Pairs({ names, beats }) {
  const columns = [{ name: "name", label: "P(this is faster than …)" }, ...names.map((name, i) => ({
    name: String(i), label: name, figure: true, sort: (row) => row.chances[i], show: (row) => (known(row.chances[i]) ? chance(row.chances[i]) : "–"),
  }))];
  return (
    <details class="words">
      <summary>Each pair</summary>
      <Table caption="How surely one is faster than another" columns={columns} rows={names.map((name, i) => ({ name, chances: beats.time[i] }))} />
    </details>
  );
}
