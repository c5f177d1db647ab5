// Ask: time, cost and memory of one job, where a step goes, and what would change it.
import { useEffect, useState } from "preact/hooks";
import { post } from "../api.js";
import { bytes, chance, chanceOf, count, dollars, duration, known, number, percent, planWords, secondsOf, si, whole, withUnit } from "../format.js";
import { bodyOf, clusterParts, ladder } from "../jobs.js";
import { Asking, Band, Bars, Choice, Cluster, Copy, FRAMEWORKS, Key, Length, More, Shown, Table, Text, Upload, Words, Workload, useAnswer, useForm } from "../parts.jsx";
import { go, link } from "../route.js";

const EXAMPLES = [
  { workload: "llama3-8b", cluster: "4x8xh100-sxm-80gb", count: "10B", unit: "tokens", framework: "torchtitan" },
  { workload: "resnet50", cluster: "1x8xa100-sxm-80gb", count: "90", unit: "epochs", framework: "pytorch" },
  { workload: "bert-large", cluster: "2xaws:p4d.24xlarge", count: "40M", unit: "samples" },
];

export function Ask({ query }) {
  const form = useForm("ask", query, { unit: "tokens" });
  const { given } = form;
  const body = given.workload && given.cluster ? bodyOf(given) : null;
  const key = JSON.stringify(body);
  const answer = useAnswer(body && ((signal) => post("predict", body, { signal })), `predict ${key}`);
  return (
    <div class="split">
      <Asking label="The job" title="How long, how much, does it fit?" form={form} asked={body && key}>
        <Workload form={form} />
        <Upload form={form} />
        <Cluster form={form} />
        <Length form={form} />
        <Text label="Global batch" name="global_batch" form={form} placeholder="the usual one" hint="samples a step" />
        <Text label="Plan" name="plan" form={form} placeholder="the best one" hint="tp=2,pp=4,zero_stage=1 …" />
        <Choice label="Framework" name="framework" form={form} options={FRAMEWORKS.map((f) => [f, f || "any usual one"])} />
        <div class="pair">
          <Text label="Deadline" name="deadline" form={form} placeholder="none" hint="24h, 7d" />
          <Text label="Budget" name="budget" form={form} placeholder="none" hint="dollars" />
        </div>
        <More form={form}>
          <Text label="Price" name="price" form={form} placeholder="of the list" hint="dollars an hour, the whole cluster" />
        </More>
        <button>Ask</button>
      </Asking>
      <div>
        {body ? (
          <Shown answer={answer}>{(found) => <Answer found={found} body={body} given={given} query={key} />}</Shown>
        ) : (
          <section>
            <h2>For example</h2>
            <ul>
              {EXAMPLES.map((one) => (
                <li key={one.workload}>
                  <a href={link("ask", one)}>{one.workload} on {one.cluster}, {one.count} {one.unit}{one.framework && `, with ${one.framework}`}</a>
                </li>
              ))}
            </ul>
            <p class="quiet">Every answer is a median with its 5–95 % band. The address of an answer asks it again.</p>
          </section>
        )}
      </div>
    </div>
  );
}

// The four figures that are seen first. Recommendations show them too.
export function Headline({ found, deadline, budget }) {
  const { chance: sure } = found;
  const device = found.cluster ?? found.job.cluster;
  return (
    <dl class="keys">
      <Key label="Time" value={duration(found.wall_seconds?.p50)}>
        <Band band={found.wall_seconds} write={duration} limit={deadline} />
        {known(sure.deadline) && <span>{chanceOf("in time", sure.deadline)}</span>}
      </Key>
      <Key label="Cost" value={dollars(found.dollars?.p50)}>
        <Band band={found.dollars} write={dollars} limit={budget} />
        {known(sure.budget) && <span>{chanceOf("within the budget", sure.budget)}</span>}
      </Key>
      <Key label="Fits in memory" value={found.fits >= 0.9 ? "yes" : found.fits >= 0.5 ? "perhaps" : "no"} tone={found.fits < 0.5 ? "bad" : found.fits < 0.9 ? "warn" : ""}>
        <span>{chanceOf("fits", found.fits)}</span>
        <Band band={found.peak_bytes} write={bytes} limit={device.device_memory_bytes} />
        <span>of {bytes(device.device_memory_bytes)} a device</span>
      </Key>
      <Key label="How sure" value={known(sure.all) ? chanceOf("all", sure.all) : distanceWord(found.distance)}>
        <span>{found.distance_means}</span>
        <span>distance {number(found.distance, 2)} from what was measured (0: beside a run, 1: physics alone)</span>
      </Key>
    </dl>
  );
}

const distanceWord = (distance) => (!known(distance) ? "unknown" : distance < 0.25 ? "near runs" : distance < 1 ? "between" : "far from runs");

function Answer({ found, body, given, query }) {
  const { cluster, workload, plan } = found;
  const explained = useAnswer((signal) => post("explain", body, { signal }), `explain ${query}`);
  return (
    <>
      <header class="title">
        <h2>{workload.name} on {cluster.name}</h2>
        <p>
          {planWords(plan)} · {workload.precision}, {workload.optimizer}{workload.framework && `, ${workload.framework}`} ·{" "}
          {count(found.length.count)} {found.length.unit} ({found.length.source})
        </p>
        <Copy />
      </header>
      {found.declined && <p class="problem" role="alert">{found.declined}</p>}
      <Headline found={found} deadline={secondsOf(given.deadline)} budget={Number(given.budget) || undefined} />
      <Words title="Warnings" items={found.warnings} first />
      <WhatIf found={found} body={body} given={given} />
      <Shown answer={explained} words="Taking the step apart">{(more) => <Explained more={more} />}</Shown>
      <section>
        <h3>Figures</h3>
        <Figures found={found} />
      </section>
      <Words title="Notes" items={found.notes} />
      <Words title="What would bring the answer nearer" items={found.nearer} />
      <Words title="Sources" items={[`price: ${found.prices.source || "none is known"}`, `workload: ${workload.source || "as given"}`, `predictor: ${found.predictor}, constants ${found.start}, fitted to ${found.fitted_runs} runs of yours`]} />
    </>
  );
}

function Figures({ found }) {
  const rows = [
    ["step", `${duration(found.step_seconds?.p50)} (${duration(found.step_seconds?.p05)} to ${duration(found.step_seconds?.p95)})`],
    ["steps alone", `${duration(found.run_seconds?.p50)}, ${whole(found.steps)} steps`],
    ["goodput", `${percent(found.goodput)} of the wall time is steps`],
    ["rate", `${withUnit(found.samples_per_second, "samples/s")}${known(found.tokens_per_second) ? `, ${si(found.tokens_per_second, "").trim()}\u00a0tokens/s` : ""}`],
    ["MFU", `${percent(found.mfu)} (${si(found.flops_per_second_per_device, "FLOP/s")} of ${si(found.peak_flops_per_second, "FLOP/s")} a device)`],
    ["price", `${dollars(found.prices.dollars_per_hour)} an hour, ${found.market}`],
    ["device-hours", number(found.device_hours)],
    ["energy", known(found.kilowatt_hours?.p50) ? withUnit(found.kilowatt_hours.p50, "kWh") : "unknown"],
    ["CO2", known(found.co2_kg?.p50) ? withUnit(found.co2_kg.p50, "kg") : "unknown: no region is known"],
  ];
  return <dl class="figures">{rows.map(([name, words]) => <div key={name}><dt>{name}</dt><dd>{words}</dd></div>)}</dl>;
}

const CHANGES = [
  { name: "change", label: "change", grow: true },
  { name: "wall_seconds", label: "time", figure: true, show: (row) => (row.refused ? "" : duration(row.wall_seconds)) },
  { name: "dollars", label: "cost", figure: true, show: (row) => (row.refused ? "" : dollars(row.dollars)) },
  { name: "speedup", label: "speed-up", figure: true, show: (row) => (row.refused ? "" : `${number(row.speedup)} x`) },
  { name: "fit_probability", label: "P(fits)", figure: true, show: (row) => (row.refused ? "" : chance(row.fit_probability)) },
  { name: "refused", label: "note", show: (row) => row.refused ?? "" },
];

function Explained({ more }) {
  const step = Object.entries(more.parts ?? {}).filter(([, value]) => value > 0);
  const whole = step.reduce((sum, [, value]) => sum + value, 0);
  const memory = Object.entries(more.memory_parts ?? {}).filter(([, value]) => value > 0);
  const open = Object.entries(more.uncertainty ?? {}).filter(([, value]) => value >= 0.001);
  return (
    <>
      <div class="halves">
        <section>
          <h3>Where a step goes</h3>
          <Bars
            fall label="Parts of the median step" write={duration}
            rows={step.map(([name, value]) => ({ name, value, note: percent(value / whole), tone: /comm|link|bubble|straggler|imbalance/.test(name) ? "wait" : "" }))}
          />
        </section>
        <section>
          <h3>Where memory goes</h3>
          <Bars fall label="Parts of the peak memory of one device" write={bytes} rows={memory.map(([name, value]) => ({ name, value, tone: "memory" }))} />
        </section>
      </div>
      <Words title="What limits it" items={more.limits} first />
      {more.what_ifs.length > 0 && (
        <details class="words">
          <summary>What would change it <span class="quiet">({more.what_ifs.length})</span></summary>
          <Table caption="One change each, all else equal" columns={CHANGES} rows={more.what_ifs} keyOf={(row) => row.change} />
        </details>
      )}
      {open.length > 0 && (
        <details class="words">
          <summary>Where the band comes from</summary>
          <Bars label="Parts of the band, as a spread of the logarithm of time" write={(v) => number(v, 2)} rows={open.map(([name, value]) => ({ name, value }))} />
        </details>
      )}
    </>
  );
}

// Sliders: the same job with other devices, batch or price, asked as they move.
function WhatIf({ found, body, given }) {
  const steps = ladder(given.cluster);
  const here = steps.findIndex((one) => one.cluster === given.cluster);
  const batch = found.plan.global_batch;
  const each = found.prices.dollars_per_hour / found.cluster.devices;
  const usual = { at: Math.max(here, 0), times: 0, price: null };
  const [moved, setMoved] = useState(usual);
  const [asked, setAsked] = useState(null);
  const cluster = steps[moved.at] ?? { cluster: given.cluster, count: found.cluster.devices };
  const parts = clusterParts(cluster.cluster);
  const devices = parts?.each ? cluster.count : found.cluster.devices_per_node * (parts?.nodes ?? 1);
  const global = Math.max(1, Math.round(batch * 2 ** moved.times));
  const price = moved.price ?? each;
  // The price shown holds for other numbers of devices too, which other machines may offer for less.
  const holds = Number.isFinite(price) && (moved.price !== null || moved.at !== usual.at);
  const same = moved.at === usual.at && !moved.times && moved.price === null;
  const changed = {
    ...body, cluster: cluster.cluster,
    ...(moved.times && { global_batch: global }),
    ...(holds && { price: price * devices }),
  };
  const key = same ? "" : JSON.stringify(changed);
  useEffect(() => {
    const timer = setTimeout(() => setAsked(key ? changed : null), 150);
    return () => clearTimeout(timer);
  }, [key]);
  const answer = useAnswer(asked && ((signal) => post("predict", asked, { signal })), JSON.stringify(asked));
  const slide = (name) => (event) => setMoved((before) => ({ ...before, [name]: Number(event.target.value) }));
  const change = (mine, its) => (known(mine) && known(its) ? ` (${number(mine / its)} x)` : "");
  const then = answer.value;
  return (
    <section class="whatif">
      <h3>What if</h3>
      <div class="sliders">
        {steps.length > 1 && (
          <label>
            <span>{parts?.each ? "devices" : "machines"} <b>{parts?.each ? devices : parts?.nodes}</b></span>
            <input type="range" min="0" max={steps.length - 1} value={moved.at} onInput={slide("at")} aria-valuetext={cluster.cluster} />
          </label>
        )}
        <label>
          <span>global batch <b>{whole(global)}</b></span>
          <input type="range" min="-4" max="4" value={moved.times} onInput={slide("times")} aria-valuetext={`${global} samples`} />
        </label>
        {known(each) && each > 0 && (
          <label>
            <span>price a device-hour <b>{dollars(price)}</b></span>
            <input type="range" min={0} max={each * 3} step={each / 20} value={price} onInput={slide("price")} aria-valuetext={dollars(price)} />
          </label>
        )}
      </div>
      <div aria-live="polite" class="then">
        {same ? <span class="quiet">Move a slider: the same job with other devices, another batch or price.</span>
          : answer.problem ? <span class="bad">{answer.problem.found}; {answer.problem.next}</span>
          : then && asked ? (
            <>
              <b>{cluster.cluster}</b> time <b>{duration(then.wall_seconds?.p50)}</b>{change(then.wall_seconds?.p50, found.wall_seconds?.p50)},{" "}
              5–95 %: {duration(then.wall_seconds?.p05)} to {duration(then.wall_seconds?.p95)} · cost <b>{dollars(then.dollars?.p50)}</b>
              {change(then.dollars?.p50, found.dollars?.p50)} · {chanceOf("fits", then.fits)}
            </>
          ) : "Computing …"}
      </div>
      {!same && (
        <div class="row">
          <button type="button" class="plain" onClick={() => go("ask", {
            ...given, cluster: cluster.cluster,
            ...(moved.times && { global_batch: global }), ...(holds && { price: (price * devices).toFixed(4) }),
          })}>Ask this</button>
          <button type="button" class="plain" onClick={() => setMoved(usual)}>Back</button>
        </div>
      )}
    </section>
  );
}
