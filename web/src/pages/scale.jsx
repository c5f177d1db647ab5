// Scale: time and cost of one job by the number of devices, with bands, and measured runs beside them.
import { useMemo } from "preact/hooks";
import { get, post } from "../api.js";
import { chance, dollars, duration, known, number, percent, whole } from "../format.js";
import { bodyOf, clusterParts, ladder } from "../jobs.js";
import { Choice, Cluster, Copy, FRAMEWORKS, Length, Shown, Table, Text, Words, Workload, useAnswer, useForm } from "../parts.jsx";
import { Plot } from "../plot.jsx";
import { link } from "../route.js";

const LENGTHS = ["tokens", "epochs", "samples", "steps"];

// The curve: the batch is fixed to that of the job asked, so that all points do the same work.
async function curve(body, most, signal) {
  const base = await post("predict", body, { signal });
  const steps = ladder(body.cluster, most);
  const batch = base.plan.global_batch;
  const { cluster, plan, framework, workload, market, precision, seq_len, ...rest } = body;
  const columns = {
    workload: steps.map(() => workload), cluster: steps.map((one) => one.cluster),
    global_batch: steps.map(() => batch),
  };
  for (const [name, value] of Object.entries({ plan, framework, precision, seq_len })) {
    if (value !== undefined) columns[name] = steps.map(() => value);
  }
  const length = Object.fromEntries(Object.entries(rest).filter(([name]) => LENGTHS.includes(name)));
  const found = (await post("predict/batch", { columns, ...length, ...(market && { market }) }, { signal })).columns;
  const machine = clusterParts(body.cluster)?.each ? 1 : base.cluster.devices_per_node;
  const rows = steps.map((one, index) => ({
    ...one, devices: one.count * machine,
    ...Object.fromEntries(Object.entries(found).map(([name, values]) => [name, values[index]])),
  }));
  let measured = [];
  let unread = "";
  try {
    const kept = await get(`runs?limit=1000&where=${encodeURIComponent(`workload=${workload}`)}`, { signal, fresh: true });
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
      <form class="ask" onSubmit={form.submit} aria-label="The job to scale">
        <h1>What do more devices buy?</h1>
        <Workload form={form} />
        <Cluster form={form} label="One of its clusters" />
        <Text label="Most nodes" name="most" form={form} />
        <Length form={form} />
        <Text label="Global batch" name="global_batch" form={form} placeholder="the usual one" hint="the same at every size" />
        <Text label="Plan" name="plan" form={form} placeholder="the best of each size" />
        <Choice label="Framework" name="framework" form={form} options={FRAMEWORKS.map((f) => [f, f || "any usual one"])} />
        <Choice label="Market" name="market" form={form} options={[["", "on demand"], ["spot", "spot"]]} />
        <button>Draw</button>
      </form>
      <div>
        {body ? <Shown answer={answer} words="Predicting each size">{(found) => <Curves found={found} given={given} />}</Shown> : (
          <section>
            <h2>For example</h2>
            <ul>
              <li><a href={link("scale", { workload: "llama3-8b", cluster: "4x8xh100-sxm-80gb", count: "10B", unit: "tokens", framework: "torchtitan" })}>llama3-8b, 10B tokens, on 8 to 256 H100</a></li>
              <li><a href={link("scale", { workload: "resnet50", cluster: "1x8xv100-sxm2-16gb", count: "90", unit: "epochs", most: "8" })}>resnet50, 90 epochs, on 1 to 64 V100</a></li>
            </ul>
          </section>
        )}
      </div>
    </div>
  );
}

function Curves({ found, given }) {
  const { base, batch, rows, measured, unread } = found;
  const answered = rows.filter((row) => !row.declined && known(row.predicted_step_time_s));
  const runs = useMemo(() => {
    const same = measured.filter((run) => !known(run.global_batch) || run.global_batch === batch);
    const device = base.cluster.device;
    return { drawn: same.filter((run) => !run.device || run.device === device), other: measured.length };
  }, [found]);
  const hidden = runs.other - runs.drawn.length;
  const line = (name, low, high) => answered.filter((row) => known(row[name])).map((row) => ({
    x: row.devices, y: row[name], low: row[low], high: row[high], words: row.cluster,
  }));
  const cost = answered.filter((row) => known(row.predicted_cost_usd)).map((row) => {
    const each = row.predicted_cost_usd / row.predicted_wall_time_s; // a price by time: its band is that of the wall time
    return { x: row.devices, y: row.predicted_cost_usd, low: each * row.predicted_wall_time_p05_s, high: each * row.predicted_wall_time_p95_s, words: row.cluster };
  });
  const x = { label: "devices", format: whole, log: true, at: [...new Set(answered.map((row) => row.devices))] };
  const series = (label, points) => [{ label, colour: "--accent", band: true, points }];
  const own = {
    label: "measured runs", colour: "--second", line: false, size: 8,
    points: runs.drawn.map((run) => ({ x: run.devices ?? run.nodes * run.devices_per_node, y: run.step_time_s, words: [run.device, run.framework, run.source ?? run.ref].filter(Boolean).join(", ") })),
  };
  const first = answered[0];
  const columns = [
    { name: "devices", label: "devices", figure: true },
    { name: "cluster", label: "cluster", show: (row) => <a href={link("ask", { ...given, cluster: row.cluster, global_batch: batch })}>{row.cluster}</a> },
    { name: "predicted_step_time_s", label: "step", figure: true, show: (row) => (row.declined ? "" : duration(row.predicted_step_time_s)) },
    { name: "predicted_wall_time_s", label: "time", figure: true, show: (row) => (row.declined ? "" : duration(row.predicted_wall_time_s)) },
    { name: "band", label: "5–95 %", figure: true, sort: (row) => row.predicted_wall_time_p95_s, show: (row) => (row.declined ? "" : `${duration(row.predicted_wall_time_p05_s)} to ${duration(row.predicted_wall_time_p95_s)}`) },
    { name: "predicted_cost_usd", label: "cost", figure: true, show: (row) => (row.declined ? "" : dollars(row.predicted_cost_usd)) },
    { name: "efficiency", label: "efficiency", figure: true, sort: (row) => first.predicted_step_time_s * first.devices / (row.predicted_step_time_s * row.devices), show: (row) => (row.declined ? "" : percent(first.predicted_step_time_s * first.devices / (row.predicted_step_time_s * row.devices))) },
    { name: "predicted_fit_probability", label: "P(fits)", figure: true, show: (row) => (row.declined ? "" : chance(row.predicted_fit_probability)) },
    { name: "predicted_plan", label: "plan", show: (row) => row.declined || row.predicted_plan },
  ];
  const summary = (what, points, write) => (points.length ? `${what} from ${write(points[0].y)} on ${points[0].x} devices to ${write(points.at(-1).y)} on ${points.at(-1).x}; the figures follow as a table` : `${what}: nothing is known`);
  const step = line("predicted_step_time_s", "predicted_step_time_p05_s", "predicted_step_time_p95_s");
  const wall = line("predicted_wall_time_s", "predicted_wall_time_p05_s", "predicted_wall_time_p95_s");
  return (
    <>
      <header class="title">
        <h2>{base.workload.name} on {clusterParts(given.cluster)?.what}, global batch {whole(batch)}</h2>
        <Copy />
      </header>
      {answered.length === 0 && <p class="problem" role="alert"><b>Found</b> {rows[0]?.declined}</p>}
      {answered.length > 0 && (
        <>
          <Plot title="Seconds a step (shade: 5–95 %)" summary={summary("step time", step, duration)} x={x} y={{ label: "step", format: duration, log: true, time: true }} series={[...series("predicted", step), ...(own.points.length ? [own] : [])]} />
          <p class="quiet">
            {own.points.length ? `${own.points.length} measured runs of this workload, device and batch are drawn. ` : "No measured run of this workload, device and batch is kept. "}
            {hidden > 0 && `${hidden} runs of another device or batch are not. `}{unread}
            {!own.points.length && !unread && "Bring some in: forerun runs import RUNS.csv, or POST /v1/runs."}
          </p>
          <div class="halves">
            <Plot title="Wall time (shade: 5–95 %)" summary={summary("wall time", wall, duration)} x={x} y={{ label: "wall time", format: duration, log: true, time: true }} series={series("predicted", wall)} />
            <Plot title="Cost (shade: 5–95 %)" summary={summary("cost", cost, dollars)} x={x} y={{ label: "cost", format: dollars, log: true }} series={series("predicted", cost)} />
          </div>
          <Table caption="Each size" columns={columns} rows={rows} keyOf={(row) => row.cluster} />
        </>
      )}
      <Words title="Notes" items={base.notes} open={false} />
    </>
  );
}
