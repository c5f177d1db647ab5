// Recommend: the best cluster, plan and batch; what else there is, brushed in a plot; what was refused, and why.
import { useMemo, useState } from "preact/hooks";
import { post } from "../api.js";
import { atProbability, chance, chanceOf, dollars, dollarsIn, duration, durationsIn, known, number, percent, planWords, whole, withUnit } from "../format.js";
import { bodyOf } from "../jobs.js";
import { Asking, Choice, Copy, FRAMEWORKS, Length, More, Shown, Table, Text, Upload, Words, Workload, useAnswer, useForm, useList } from "../parts.jsx";
import { Plot, costAxis, timeAxis } from "../plot.jsx";
import { link } from "../route.js";
import { Headline } from "./ask.jsx";

const AIMS = [["cost", "least cost"], ["time", "least time"], ["knee", "the knee of both"], ["energy", "least energy"]];

export function Recommend({ query }) {
  const form = useForm("recommend", query, { unit: "tokens", minimize: "cost" });
  const { given } = form;
  const devices = useList("devices");
  const names = useMemo(() => devices.map((row) => row.id), [devices]);
  const body = given.workload ? bodyOf(given) : null;
  const key = JSON.stringify(body);
  const answer = useAnswer(body && ((signal) => post("recommend", body, { signal })), key);
  return (
    <div class="split">
      <Asking label="What is wanted" title="Which cluster, plan and batch?" form={form} asked={body && key}>
        <Workload form={form} />
        <Upload form={form} />
        <Length form={form} />
        <div class="pair">
          <Text label="Deadline" name="deadline" form={form} placeholder="none" hint="24h, 7d" />
          <Text label="Budget" name="budget" form={form} placeholder="none" hint="dollars" />
        </div>
        <div class="pair">
          <Choice label="Best is" name="minimize" form={form} options={AIMS} />
          <Text label="Confidence" name="confidence" form={form} placeholder="0.5" hint="of all limits" />
        </div>
        <Text label="Devices" name="devices" form={form} list={names} placeholder="any" hint="h100,amd,tpu: names, families, makers" />
        <Text label="Clusters" name="clusters" form={form} placeholder="the whole catalogue" hint="4x8xh100-sxm-80gb, 8xaws:p5.48xlarge" />
        <div class="pair">
          <Text label="Providers" name="providers" form={form} placeholder="any" />
          <Text label="Exclude" name="exclude" form={form} placeholder="nothing" />
        </div>
        <Text label="Most devices" name="max_devices" form={form} placeholder="512 by default" hint="in the largest cluster" />
        <Choice label="Framework" name="framework" form={form} options={FRAMEWORKS.map((f) => [f, f || "any usual one"])} />
        <More form={form} />
        <button>Recommend</button>
      </Asking>
      <div>
        {body ? (
          <Shown answer={answer} words="Scoring every legal plan">{(found) => <Found found={found} given={given} body={body} key={key} />}</Shown>
        ) : (
          <section>
            <h2>For example</h2>
            <ul>
              <li><a href={link("recommend", { workload: "llama3-8b", framework: "torchtitan", count: "10B", unit: "tokens", deadline: "2d", budget: "3000", confidence: "0.9", devices: "h100,a100" })}>llama3-8b, 10B tokens on H100 or A100 within 2 days and $3,000, at 90 % confidence, with torchtitan</a></li>
              <li><a href={link("recommend", { workload: "resnet50", count: "90", unit: "epochs", deadline: "24h", clusters: "1x8xa100-sxm-80gb,1x8xh100-sxm-80gb" })}>resnet50, 90 epochs within a day, on one of two clusters of yours</a></li>
            </ul>
          </section>
        )}
      </div>
    </div>
  );
}

const jobLink = (option, given) => link("ask", {
  workload: given.workload, cluster: option.job.cluster.name, plan: planText(option.job.plan),
  global_batch: option.job.plan.global_batch, count: given.count, unit: given.count && given.unit,
  framework: given.framework, precision: given.precision, deadline: given.deadline, budget: given.budget,
  market: given.market, region: option.job.cluster.region,
});

const planText = (plan) => planWords(plan).split(" ").filter((w) => !w.startsWith("global_batch=")).join(",");

function Found({ found, given, body }) {
  const { best, objective } = found;
  const options = useMemo(() => {
    const every = [...found.front, ...found.alternatives, found.runner_up, found.next_layout, best].filter(Boolean);
    return [...new Map(every.map((one) => [one.job.key, one])).values()];
  }, [found]);
  const [brushed, setBrushed] = useState(null);
  const [most, setMost] = useState({ hours: "", dollars: "" });
  const within = (option) => {
    const [time, cost] = [option.wall_seconds?.p50, option.dollars?.p50];
    if (most.hours && !(time <= Number(most.hours) * 3600)) return false;
    if (most.dollars && !(cost <= Number(most.dollars))) return false;
    return !brushed || (time >= brushed.x[0] && time <= brushed.x[1] && cost >= brushed.y[0] && cost <= brushed.y[1]);
  };
  const rows = options.filter(within);
  const isBest = (option) => best && option.job.key === best.job.key;
  const filtered = brushed || most.hours || most.dollars;
  return (
    <>
      <header class="title">
        <h2>{best ? `${found.workload}: ${best.job.cluster.name}` : `${found.workload}: nothing meets these limits`}</h2>
        {best && <p>{planWords(best.job.plan)} · {best.job.workload.precision}, {best.job.workload.optimizer} · {dollars(best.dollars_per_hour)} an hour, {best.market}</p>}
        <div class="row">
          {best && <a href={jobLink(best, given)}>Ask about this job</a>}
          <Copy />
        </div>
      </header>
      {best ? (
        <Headline found={best} deadline={objective.deadline_seconds ?? undefined} budget={objective.budget_dollars ?? undefined} />
      ) : (
        <p class="problem" role="status">
          <b>Found</b> no plan meets every limit at {percent(objective.confidence)} confidence. <b>Next</b> see the nearest misses below, and allow more time, money or devices.
        </p>
      )}
      {best && <Why found={found} options={options} given={given} />}
      {found.near_misses.length > 0 && <Misses rows={found.near_misses} given={given} />}
      {options.length > 0 && (
        <>
          <Pareto options={options} isBest={isBest} front={found.front} onBrush={setBrushed} />
          <form class="bar-form" onSubmit={(event) => event.preventDefault()} aria-label="Filter of the table">
            <label>Time at most, hours <input type="number" min="0" step="any" value={most.hours} onInput={(e) => setMost({ ...most, hours: e.target.value })} /></label>
            <label>Cost at most, dollars <input type="number" min="0" step="any" value={most.dollars} onInput={(e) => setMost({ ...most, dollars: e.target.value })} /></label>
            {filtered && <button type="button" class="plain" onClick={() => { setBrushed(null); setMost({ hours: "", dollars: "" }); }}>All options</button>}
            <span aria-live="polite" class="quiet">{rows.length} of {options.length} options</span>
          </form>
          <Options rows={rows} options={options} given={given} isBest={isBest} />
        </>
      )}
      {best && <Next body={body} />}
      <Refused found={found} />
      <Words title="Assumptions" items={found.assumptions} />
      <Words title="Warnings" items={best?.warnings} first />
      <Words title="Sources" items={[`prices: ${found.prices_as_of || "none has a date"}`]} />
    </>
  );
}

const AIM = {
  cost: ["the least cost", (o) => o.dollars, dollars], time: ["the least time", (o) => o.wall_seconds, duration],
  energy: ["the least energy", (o) => o.kilowatt_hours, (v) => withUnit(v, "kWh")], knee: ["the knee of time and cost"],
};

// Why the best is the best: the figure that decides, the closest rival, and what costs less and is not chosen.
function Why({ found, options, given }) {
  const { best, objective, runner_up: rival, next_layout: layout } = found;
  const [aim, of] = AIM[objective.aim];
  const named = (option) => <><a href={jobLink(option, given)}>{option.job.cluster.name}</a> <span class="quiet">{planWords(option.job.plan)}</span></>;
  const beaten = (option) => chanceOf("best beats it", option.beaten_by_best?.[objective.aim]);
  const cheaper = cheaperThan(best, options);
  const less = cheaper && ` It costs less, ${dollars(cheaper.dollars.p50)} where best costs ${dollars(best.dollars.p50)}, and is not chosen: ${whyNot(cheaper, best, objective)}.`;
  return (
    <section>
      <h3>Why this one</h3>
      <ul>
        <li>
          It has {aim}{of && ` at ${percent(objective.confidence)} confidence: that quantile, divided by P(fits), decides; the figures shown are medians`}.
          Of plans within 5 % of each other the simplest stands for a cluster.
        </li>
        {rival && rival.job.key !== best.job.key && <li>The closest rival on another cluster: {named(rival)}, {beaten(rival)}.</li>}
        {layout && layout.job.key !== best.job.key && <li>The next way to lay it out on this cluster: {named(layout)}, {beaten(layout)}.{cheaper === layout && less}</li>}
        {cheaper && cheaper !== layout && <li>{named(cheaper)}.{less}</li>}
      </ul>
    </section>
  );
}

// What costs less than the best: of its cluster, else of its machine, else of all; the cheapest of these.
function cheaperThan(best, options) {
  const less = options.filter((o) => o.job.key !== best.job.key && known(o.dollars?.p50) && o.dollars.p50 < best.dollars?.p50);
  const { name, instance_type: machine } = best.job.cluster;
  const group = [(o) => o.job.cluster.name === name, (o) => machine && o.job.cluster.instance_type === machine, () => true]
    .map((same) => less.filter(same)).find((some) => some.length);
  return group?.reduce((a, b) => (b.dollars.p50 < a.dollars.p50 ? b : a));
}

function whyNot(option, best, objective) {
  const missed = Object.values(option.misses ?? {});
  if (missed.length) return missed.join("; ");
  const all = option.chance.all ?? option.chance.fits;
  const wanted = known(option.chance.all) ? objective.confidence : objective.fit_confidence;
  if (all < wanted) return `${chanceOf("all", all)}, and ${chance(wanted)} is wanted`;
  const [words, of, write] = AIM[objective.aim];
  if (!of) return `best is at ${words}, ${duration(best.wall_seconds.p50)} in place of ${duration(option.wall_seconds.p50)}; ask for the least cost to get it`;
  const [mine, its] = [best, option].map((one) => atProbability(of(one), objective.confidence));
  if (objective.aim !== "cost") return `it takes ${write(its)} at ${percent(objective.confidence)} confidence, best ${write(mine)}; ask for the least cost to get it`;
  if (its > mine) return `it is less sure: at ${percent(objective.confidence)} confidence it costs ${dollars(its)}, best ${dollars(mine)}`;
  if (its / option.fits > mine / best.fits) return `it fits less surely, ${chanceOf("fits", option.fits)} where best has ${chance(best.fits)}, and cost is divided by that`;
  if (mine / best.fits <= 1.05 * (its / option.fits)) return "the two are within 5 % of each other, and best is the simpler plan";
  return "by its figures nothing speaks against it; ask about it to see it whole";
}

function Pareto({ options, isBest, front, onBrush }) {
  const keys = new Set(front.map((one) => one.job.key));
  const priced = options.filter((one) => known(one.wall_seconds?.p50) && known(one.dollars?.p50));
  if (!priced.length) return <p class="quiet">No option has a price, so there is no plot of time and cost.</p>;
  const point = (one) => ({
    x: one.wall_seconds.p50, left: one.wall_seconds.p05, right: one.wall_seconds.p95,
    y: one.dollars.p50, low: one.dollars.p05, high: one.dollars.p95, words: `${one.job.cluster.name}, ${planWords(one.job.plan)}`,
  });
  const series = [
    { label: "on the Pareto front", colour: "--accent", points: priced.filter((o) => keys.has(o.job.key) && !isBest(o)).map(point) },
    { label: "other options", colour: "--quiet", hollow: true, points: priced.filter((o) => !keys.has(o.job.key) && !isBest(o)).map(point) },
    { label: "best", colour: "--second", size: 11, points: priced.filter(isBest).map(point) },
  ].filter((one) => one.points.length).map((one) => ({ ...one, line: false }));
  const spread = (name) => Math.max(...priced.map((o) => o[name].p50)) / Math.min(...priced.map((o) => o[name].p50)) > 8;
  return (
    <Plot
      title="Time and cost of the options (bars: 5–95 %)" height={320} brush onBrush={onBrush} series={series}
      summary={`${priced.length} options by time and cost, ${front.length} of them on the Pareto front; the figures follow as a table`}
      x={timeAxis("wall time", series.flatMap((one) => one.points), spread("wall_seconds"), ["x"])} y={costAxis("cost", series.flatMap((one) => one.points), spread("dollars"))}
    />
  );
}

const range = (band, write) => (band ? `${write(band.p05)} to ${write(band.p95)}` : "");

// rows: those that set the units of the columns.
function optionColumns(given, rows) {
  const { write: time } = durationsIn(rows.map((o) => o.wall_seconds?.p50));
  const cost = dollarsIn(rows.map((o) => o.dollars?.p50));
  return [
    { name: "cluster", label: "cluster", grow: true, sort: (o) => o.job.cluster.name, show: (o) => <><a href={jobLink(o, given)}>{o.job.cluster.name}</a> <span class="quiet">{planWords(o.job.plan)}</span></> },
    { name: "time", label: "time", figure: true, sort: (o) => o.wall_seconds?.p50, show: (o) => time(o.wall_seconds?.p50) },
    { name: "times", label: "5–95 %", figure: true, sort: (o) => o.wall_seconds?.p95, show: (o) => range(o.wall_seconds, time) },
    { name: "cost", label: "cost", figure: true, sort: (o) => o.dollars?.p50, show: (o) => cost(o.dollars?.p50) },
    { name: "costs", label: "5–95 %", figure: true, sort: (o) => o.dollars?.p95, show: (o) => range(o.dollars, cost) },
    { name: "fits", label: "P(fits)", figure: true, show: (o) => chance(o.fits) },
    { name: "all", label: "P(all)", figure: true, sort: (o) => o.chance.all ?? o.chance.fits, show: (o) => chance(o.chance.all ?? o.chance.fits) },
    { name: "mfu", label: "MFU", figure: true, show: (o) => percent(o.mfu) },
  ];
}

function Options({ rows, options, given, isBest }) {
  return <Table caption="Options: the Pareto front and what comes near it" columns={optionColumns(given, options)} rows={rows} keyOf={(o) => o.job.key} chosen={isBest} sorted="cost" />;
}

function Misses({ rows, given }) {
  const columns = [
    ...optionColumns(given, rows).filter((one) => ["cluster", "time", "cost", "fits", "all"].includes(one.name)),
    { name: "misses", label: "misses", grow: true, sort: (o) => Object.keys(o.misses).join(), show: (o) => Object.values(o.misses).join("; ") },
  ];
  return <Table caption="The nearest misses" columns={columns} rows={rows} keyOf={(o) => o.job.key} />;
}

const RUNS = [
  { name: "job", label: "run", grow: true },
  { name: "price", label: "price", figure: true, show: (run) => (run.row.suggested_price_unit === "dollars" ? dollars(run.price) : `${number(run.price)} ${run.row.suggested_price_unit ?? ""}`) },
  { name: "seconds", label: "time", figure: true, show: (run) => (known(run.seconds) ? duration(run.seconds) : "") },
  { name: "steps", label: "steps", figure: true, show: (run) => (known(run.steps) ? whole(run.steps) : "") },
  { name: "reason", label: "why", grow: true },
];

// The runs that would improve this choice most for their price; asked when wanted, since it takes as long as the choice.
function Next({ body }) {
  const [wanted, setWanted] = useState(false);
  const { confidence, budget, minimize, ...job } = body; // a budget there is one for the runs
  const asked = { ...job, ...(minimize === "time" && { minimize }) };
  const answer = useAnswer(wanted && ((signal) => post("suggest", asked, { signal })), `suggest ${wanted} ${JSON.stringify(asked)}`);
  return (
    <section>
      <h3>What to measure next</h3>
      {!wanted && <p class="row"><button type="button" class="plain" onClick={() => setWanted(true)}>Which runs would improve this choice?</button></p>}
      {wanted && (
        <Shown answer={answer} words="Weighing runs">
          {(found) => (
            <>
              {found.runs.length > 0 ? <Table caption={`For the least ${asked.minimize ?? "cost"}; ${whole(found.considered)} runs were considered`} columns={RUNS} rows={found.runs} keyOf={(run) => run.order} />
                : <p>None: {found.stop || "no run would change it"}.</p>}
              {found.chosen_now && <p class="quiet">The job chosen now: {found.chosen_now}.</p>}
              <Words title="Notes" items={found.assumptions} open={false} />
            </>
          )}
        </Shown>
      )}
    </section>
  );
}

function Refused({ found }) {
  const { counts, refused } = found;
  const columns = [
    { name: "reason", label: "reason", grow: true },
    { name: "count", label: "plans", figure: true, show: (row) => whole(row.count) },
    { name: "job", label: "for example", sort: (row) => row.job?.cluster, show: (row) => (row.job ? `${row.job.cluster ?? ""} ${row.job.plan ?? ""}` : "") },
  ];
  return (
    <details class="words">
      <summary>
        Refused plans <span class="quiet">({whole(counts.considered)} considered, {whole(counts.legal)} legal, {whole(counts.qualified)} within the limits)</span>
      </summary>
      {found.not_searched && <p>{found.not_searched}</p>}
      <Table caption="Why plans were refused" columns={columns} rows={refused} />
      <ul>{Object.entries(counts.refused).map(([reason, n]) => <li key={reason}>{whole(n)}: {reason}</li>)}</ul>
    </details>
  );
}
