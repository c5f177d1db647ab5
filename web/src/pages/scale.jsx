// Scale: time and cost of one job by the number of devices, with bands, and measured runs beside them.
import { useMemo } from "preact/hooks";
import { get, post } from "../api.js";
import { chance, dollars, dollarsIn, duration, durationsIn, known, percent, planWords, whole } from "../format.js";
import { bodyOf, clusterParts, ladder } from "../jobs.js";
import { Asking, Choice, Cluster, Copy, FRAMEWORKS, Length, Shown, Table, Text, Upload, Words, Workload, useAnswer, useForm } from "../parts.jsx";
import { Plot, costAxis, looksOf, timeAxis } from "../plot.jsx";
import { link } from "../route.js";

const MOST_JOBS = 8; // of one comparison

// The curve: the batch is fixed to that of the job asked, so that all points do the same work. Sizes are asked in
// comparisons: in these one that cannot be has its reason, and each has the machine of its price.
async function curve(body, most, signal) {
  let asked = body.cluster;
  let base;
  try {
    base = await post("predict", body, { signal });
  } catch (error) {
    const largest = ladder(asked, most).at(-1)?.cluster;
    if (error.status !== 422 || !largest || largest === asked) throw error;
    asked = largest; // the one asked is too small
    base = await post("predict", { ...body, cluster: asked }, { signal });
  }
  if (!clusterParts(asked)) asked = base.cluster.name; // h100:8 in its long form
  const batch = base.plan.global_batch;
  const sizes = ladder(asked, most);
  const others = sizes.filter((one) => one.cluster !== asked);
  const answers = new Map([[asked, { answer: base }]]);
  for (let at = 0; at < others.length; at += MOST_JOBS - 1) {
    const some = others.slice(at, at + MOST_JOBS - 1);
    const jobs = [asked, ...some.map((one) => one.cluster)].map((cluster) => ({ ...body, cluster, global_batch: batch }));
    const found = await post("compare", { jobs }, { signal });
    const reasons = some.map(({ cluster }) => found.refused.find((one) => one.job.split(", ").includes(cluster))?.reason);
    const left = found.jobs.slice(1); // in the order asked, without those refused
    some.forEach(({ cluster }, i) => answers.set(cluster, reasons[i] ? { declined: reasons[i] } : { answer: left.shift() }));
  }
  const machine = clusterParts(asked).each ? 1 : base.cluster.devices_per_node;
  const rows = sizes.map((one) => ({ ...one, devices: one.count * machine, ...answers.get(one.cluster) }));
  let measured = [];
  let unread = "";
  try {
    const kept = await get(`runs?limit=1000&where=${encodeURIComponent(`workload=${base.workload.name}`)}`, { signal, fresh: true });
    measured = kept.runs.filter((run) => known(run.devices ?? run.nodes * run.devices_per_node) && known(run.step_time_s));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    unread = `runs cannot be shown: ${error.found}; ${error.next}`;
  }
  return { base, batch, rows, measured, unread };
}

export function Scale({ query }) {
  const form = useForm("scale", query, { unit: "tokens", most: "32" });
  const { most, ...given } = form.given;
  const body = given.workload && given.cluster ? bodyOf(given) : null;
  const key = JSON.stringify([body, most]);
  const answer = useAnswer(body && ((signal) => curve(body, Number(most) || 32, signal)), key);
  return (
    <div class="split">
      <Asking label="The job to scale" title="What do more devices buy?" form={form} asked={body && key}>
        <Workload form={form} />
        <Upload form={form} />
        <Cluster form={form} label="One of its clusters" />
        <Text label="Most nodes" name="most" form={form} />
        <Length form={form} />
        <Text label="Global batch" name="global_batch" form={form} placeholder="the usual one" hint="the same at every size" />
        <Text label="Plan" name="plan" form={form} placeholder="the best of each size" />
        <Choice label="Framework" name="framework" form={form} options={FRAMEWORKS.map((f) => [f, f || "any usual one"])} />
        <Choice label="Market" name="market" form={form} options={[["", "on demand"], ["spot", "spot"]]} />
        <button>Draw</button>
      </Asking>
      <div>
        {body ? <Shown answer={answer} words="Predicting each size">{(found) => <Curves found={found} given={given} />}</Shown> : (
          <section>
            <h2>For example</h2>
            <ul>
              <li><a href={link("scale", { workload: "llama3-8b", cluster: "4x8xh100-sxm-80gb", count: "10B", unit: "tokens", framework: "torchtitan" })}>llama3-8b, 10B tokens, on up to 256 H100, with torchtitan</a></li>
              <li><a href={link("scale", { workload: "resnet50", cluster: "1x8xv100-sxm2-16gb", count: "90", unit: "epochs", most: "8" })}>resnet50, 90 epochs, on up to 64 V100</a></li>
            </ul>
          </section>
        )}
      </div>
    </div>
  );
}

// The machine whose price a size has, as its source names it.
const machineOf = ({ answer }) => answer.prices.source.split(";")[0] || "as given";

function Curves({ found, given }) {
  const { base, batch, rows, measured, unread } = found;
  const answered = rows.filter((row) => row.answer);
  const runs = useMemo(() => {
    const same = measured.filter((run) => !known(run.global_batch) || run.global_batch === batch);
    const device = base.cluster.device;
    return { drawn: same.filter((run) => !run.device || run.device === device), other: measured.length };
  }, [found]);
  const hidden = runs.other - runs.drawn.length;
  const line = (name, some = answered) => some.filter((row) => known(row.answer[name]?.p50)).map((row) => {
    const { p05, p50, p95 } = row.answer[name];
    return { x: row.devices, y: p50, low: p05, high: p95, words: row.cluster };
  });
  const [step, wall, cost] = ["step_seconds", "wall_seconds", "dollars"].map((name) => line(name));
  const machines = [...new Set(answered.filter((row) => known(row.answer.dollars?.p50)).map(machineOf))];
  const costs = machines.map((label, i) => {
    const points = line("dollars", answered.filter((row) => machineOf(row) === label));
    return { label, ...looksOf(i), band: points.length > 1, points };
  });
  const own = {
    label: "measured runs", colour: "--second", line: false, size: 8,
    points: runs.drawn.map((run) => ({ x: run.devices ?? run.nodes * run.devices_per_node, y: run.step_time_s, words: [run.device, run.framework, run.source ?? run.ref].filter(Boolean).join(", ") })),
  };
  const x = { label: "devices", format: whole, log: true, at: [...new Set([...step, ...own.points].map((point) => point.x))].sort((a, b) => a - b) };
  const series = (points) => [{ label: "predicted", colour: "--accent", band: true, points }];
  const summary = (what, points, write) => (points.length ? `${what} from ${write(points[0].y)} on ${points[0].x} devices to ${write(points.at(-1).y)} on ${points.at(-1).x}; the figures follow as a table` : `${what}: nothing is known`);
  return (
    <>
      <header class="title">
        <h2>{base.workload.name} on {clusterParts(base.cluster.name)?.what}, global batch {whole(batch)}</h2>
        <Copy />
      </header>
      <Plot title="Seconds a step (shade: 5–95 %)" summary={summary("step time", step, duration)} x={x} y={timeAxis("step", [...step, ...own.points])} series={[...series(step), ...(own.points.length ? [own] : [])]} />
      <p class="quiet">
        {own.points.length ? `${own.points.length} measured runs of this workload, device and batch are drawn. ` : "No measured run of this workload, device and batch is kept. "}
        {hidden > 0 && `${hidden} runs of another device or batch are not. `}{unread}
        {!own.points.length && !unread && "Bring some in: forerun runs import RUNS.csv, or POST /v1/runs."}
      </p>
      <div class="halves">
        <Plot title="Wall time (shade: 5–95 %)" summary={summary("wall time", wall, duration)} x={x} y={timeAxis("wall time", wall)} series={series(wall)} />
        {cost.length > 0 ? (
          <Plot title="Cost, each machine apart (shade, bars: 5–95 %)" summary={summary(`cost, priced as ${machines.length} machines`, cost, dollars)} x={x} y={costAxis("cost", cost)} series={costs} />
        ) : <p class="quiet">No price is known, so there is no curve of cost.</p>}
      </div>
      {machines.length > 1 && <p class="quiet">Each size has the price of the cheapest machine that offers it, which is not the same one everywhere. Name a machine, such as 4xaws:p5.48xlarge, to see it at all sizes.</p>}
      <Sizes rows={answered} given={given} batch={batch} />
      <Words title="Sizes that cannot be" items={rows.filter((row) => row.declined).map((row) => row.declined)} />
      <Words title="Notes" items={base.notes} open={false} />
    </>
  );
}

function Sizes({ rows, given, batch }) {
  const all = (name) => rows.map(({ answer }) => answer[name]?.p50);
  const [step, time] = ["step_seconds", "wall_seconds"].map((name) => durationsIn(all(name)).write);
  const cost = dollarsIn(all("dollars"));
  const [first] = rows;
  const share = ({ answer, devices }) => (first.answer.step_seconds.p50 * first.devices) / (answer.step_seconds.p50 * devices);
  const column = (name, label, of, write) => ({
    name, label, figure: true, sort: of, show: (row) => (known(of(row)) ? write(of(row), row) : ""),
  });
  const columns = [
    { name: "devices", label: "devices", figure: true, sort: (row) => row.devices },
    {
      name: "cluster", label: "cluster and plan", grow: true,
      show: (row) => <><a href={link("ask", { ...given, cluster: row.cluster, global_batch: batch })}>{row.cluster}</a> <span class="quiet">{planWords({ ...row.answer.plan, global_batch: undefined })}</span></>,
    },
    column("step", "step", ({ answer }) => answer.step_seconds?.p50, step),
    column("time", "time", ({ answer }) => answer.wall_seconds?.p50, time),
    column("band", "5–95 %", ({ answer }) => answer.wall_seconds?.p95, (_, { answer }) => `${time(answer.wall_seconds.p05)} to ${time(answer.wall_seconds.p95)}`),
    column("cost", "cost", ({ answer }) => answer.dollars?.p50, cost),
    column("price", "price an hour", ({ answer }) => answer.prices.dollars_per_hour, dollars),
    column("each", "a device-hour", ({ answer, devices }) => answer.prices.dollars_per_hour / devices, dollars),
    { name: "machine", label: "machine of the price", sort: machineOf, show: (row) => (known(row.answer.prices.dollars_per_hour) ? machineOf(row) : "") },
    column("efficiency", "efficiency", share, percent),
    column("fits", "P(fits)", ({ answer }) => answer.fits, chance),
  ];
  return <Table caption="Each size; efficiency: samples a second and device, of those of the smallest size" columns={columns} rows={rows} keyOf={(row) => row.cluster} most={20} />;
}
