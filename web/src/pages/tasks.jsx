// Tasks: campaigns, searches, fits and elastic jobs, live by server-sent events.
import { useEffect, useMemo, useState } from "preact/hooks";
import { answered, events, get, page, pauseAfter, post } from "../api.js";
import { askedWords, day, dollars, duration, durationsIn, known, number, si, text, whole } from "../format.js";
import { Choice, Copy, Field, Lost, Problem, Shown, Table, useAnswer, useForm, useTokenTurn } from "../parts.jsx";
import { Plot, looksOf, timeAxis } from "../plot.jsx";
import { link } from "../route.js";
import { runColumns } from "./lists.jsx";

// The kinds of tasks, by their routes; an example of each is its body.
function useKinds(there) {
  const { value } = useAnswer((signal) => get("openapi.json", { signal }), `api ${there}`);
  return useMemo(() => Object.fromEntries(Object.entries(value?.paths ?? {}).flatMap(([path, route]) => {
    const [, what] = /^\/v1\/tasks\/(\w+)$/.exec(path) ?? [];
    return what && route.post ? [[what, route.post.requestBody.content["application/json"].example]] : [];
  })), [value]);
}

const STATES = ["waiting", "running", "done", "failed", "cancelled"];
const ENDED = new Set(["done", "failed", "cancelled"]);
const ended = (task) => ENDED.has(task.state);

export function Tasks({ query }) {
  const id = query.get("id");
  return id ? <One id={id} key={id} /> : <Every query={query} />;
}

function Every({ query }) {
  const form = useForm("tasks", query);
  const { what = "", state = "" } = form.given;
  const [turn, setTurn] = useState(0);
  const path = `tasks?${new URLSearchParams(Object.entries({ what, state, limit: "50" }).filter(([, v]) => v))}`;
  const answer = useAnswer(async (signal) => {
    try {
      const { body, next } = await page(path, { signal });
      return { ...body, next, path };
    } catch (error) {
      if (error.status === 404) return { none: error };
      throw error;
    }
  }, `${path} ${turn}`);
  const { lost, value } = answer;
  const kinds = useKinds(!lost);
  useEffect(() => {
    if (answer.waits || !(lost || value?.tasks?.some((task) => !ended(task)))) return undefined;
    const timer = setTimeout(() => setTurn(turn + 1), lost ? pauseAfter(lost.tries) : 3000);
    return () => clearTimeout(timer);
  }, [answer]);
  const shown = lost ? { value: value?.path === path && value } : answer; // a table stays while the service is away
  return (
    <>
      <h1>Tasks</h1>
      <form class="bar-form" onSubmit={form.submit} aria-label="Which tasks">
        <Choice label="What" name="what" form={form} options={[["", "all"], ...Object.keys(kinds)]} />
        <Choice label="State" name="state" form={form} options={[["", "all"], ...STATES]} />
        <button>Show</button>
        <Copy />
      </form>
      <Lost lost={lost} />
      <Shown answer={shown} words="Reading tasks">{(found) => (found.none ? <None problem={found.none} /> : <Listed tasks={found.tasks} lost={lost} />)}</Shown>
      {!value?.none && <Start what={what} kinds={kinds} key={what} />}
    </>
  );
}

function None({ problem }) {
  return (
    <section class="none">
      <p>This service keeps no tasks ({problem.found}).</p>
      <p>Long work runs on the command line: <code>forerun profile CAMPAIGN.yaml</code>, <code>forerun search SPACE.yaml</code>, <code>forerun train JOB.yaml</code>.</p>
    </section>
  );
}

// lost: the service does not answer, and a task may have ended since.
const State = ({ task, lost }) => (lost && !ended(task) ? <span class="tag">was {task.state}</span> : <span class={`tag ${task.state}`}>{task.state}</span>);

function span(task, lost) {
  const from = Date.parse(task.started ?? task.created);
  return duration(Math.max(0, ((task.ended ? Date.parse(task.ended) : lost ? lost.since : Date.now()) - from) / 1000));
}

function Listed({ tasks, lost }) {
  const columns = [
    { name: "id", label: "task", show: (task) => <a href={link("tasks", { id: task.id })}>{task.what} {task.id.slice(0, 8)}</a> },
    { name: "state", label: "state", show: (task) => <State task={task} lost={lost} /> },
    { name: "progress", label: "progress", sort: (task) => task.progress?.done, show: far },
    ...(tasks.some((task) => known(end(task))) ? [{ name: "end", label: "end", sort: end, show: (task) => (lost && known(end(task)) ? "unknown" : <Eta task={task} />) }] : []),
    { name: "created", label: "created", show: (task) => day(task.created) },
    { name: "time", label: "took", figure: true, sort: (task) => Date.parse(task.ended ?? task.started ?? task.created), show: (task) => (task.started ? span(task, lost) : "") },
    { name: "asked", label: "asked", grow: true, sort: (task) => askedWords(task.asked), show: (task) => <Asked asked={task.asked} /> },
  ];
  return tasks.length ? <Table caption="Newest first" columns={columns} rows={tasks} keyOf={(task) => task.id} />
    : <p>No task is kept. Start one below.</p>;
}

function far(task) {
  if (task.state === "failed") return <span class="bad">{[task.problem?.asked, task.problem?.found].filter(Boolean).join(": ")}</span>;
  return progressWords(task);
}

const end = (task) => (task.state === "running" ? task.progress?.eta_seconds?.p50 : undefined);

// What was asked, as many whole parts as have room.
function Asked({ asked }) {
  const words = askedWords(asked);
  if (words.length <= ROOM) return words;
  const cut = words.lastIndexOf(" · ", ROOM);
  return <span title={words}>{words.slice(0, cut > 0 ? cut : ROOM)} …</span>;
}

const ROOM = 180; // characters

// How far a task is; of one that ended what it was doing says nothing any more.
// loss: the last one of an encoder, whose note has four decimals alone.
function progressWords({ progress, what, state }, loss) {
  if (!progress) return "";
  const { done, of, note } = progress;
  if (ENDED.has(state)) return known(of) ? `${whole(done)} of ${whole(of)}` : "";
  const far = done + of > 0 ? `${whole(done)}${known(of) ? ` of ${whole(of)}` : ""}${what === "train" ? " steps" : ""}` : "";
  const words = what !== "encoder" ? note : known(loss) ? note?.replace(/^loss [\d.]+$/, `loss ${number(loss)}`) : note?.replace(/^loss 0\.0000$/, "loss\u00a0<\u00a00.0001");
  return [far, words].filter(Boolean).join(": ");
}

function Start({ what: first, kinds }) {
  const [what, setWhat] = useState(first || "fit");
  const [body, setBody] = useState("");
  const [problem, setProblem] = useState(null);
  useEffect(() => setBody(kinds[what] ? JSON.stringify(kinds[what], null, 2) : ""), [what, kinds]);
  const form = { values: { start: what }, set: (_, value) => setWhat(value) };
  const start = async (event) => {
    event.preventDefault();
    setProblem(null);
    try {
      const asked = JSON.parse(body);
      const key = [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");
      const { task } = await post(`tasks/${what}`, asked, { headers: { "idempotency-key": key } });
      location.hash = link("tasks", { id: task.id });
    } catch (error) {
      setProblem(error instanceof SyntaxError ? { asked: "a task", found: `the body is no JSON: ${error.message}`, next: "correct it" } : error);
    }
  };
  return (
    <details class="words" open={Boolean(first)}>
      <summary>Start a task</summary>
      <form class="ask" onSubmit={start} aria-label="A new task">
        <Choice label="What" name="start" form={form} options={Object.keys(kinds)} />
        <Field label="Body" hint="JSON, with the fields of the command of that name; here the example of /v1/openapi.json">
          {(id) => <textarea id={id} spellcheck={false} value={body} onInput={(event) => setBody(event.target.value)} />}
        </Field>
        <Problem problem={problem} />
        <button>Start</button>
      </form>
    </details>
  );
}

function One({ id }) {
  const [task, setTask] = useState(null);
  const [runs, setRuns] = useState([]);
  const [problem, setProblem] = useState(null);
  const [refused, setRefused] = useState(null);
  const [lost, setLost] = useState(null);
  const turn = useTokenTurn();
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const failed = (error) => {
      if (signal.aborted) return;
      setLost(null);
      setProblem(error);
    };
    const heard = (found) => signal.aborted || setLost((before) => found && { problem: found, since: before?.since ?? new Date() });
    const path = `tasks/${encodeURIComponent(id)}`;
    const read = () => answered(() => get(path, { signal, fresh: true }), signal, heard).then((body) => {
      if (signal.aborted) return;
      setTask(body.task);
      setLost(null);
    }).catch(failed);
    setProblem(null);
    setRuns([]);
    read();
    events(`${path}/events`, (kind, data) => {
      if (signal.aborted) return;
      if (kind === "run") setRuns((before) => [...before, data]);
      else setTask((before) => ({ ...before, ...data }));
    }, signal, heard).then(read, failed); // what it found comes with the task
    return () => stop.abort();
  }, [id, turn]);
  const [ending, setEnding] = useState(false);
  const cancel = async () => {
    setEnding(true);
    try {
      setTask((await post(`tasks/${encodeURIComponent(id)}/cancel`, {})).task);
    } catch (error) {
      setRefused(error);
      setEnding(false);
    }
  };
  if (!task) return <><h1>Task {id}</h1><Lost lost={lost} />{problem ? <Problem problem={problem} /> : <p class="waits" aria-busy="true">Reading the task …</p>}</>;
  const { progress } = task;
  const rows = [runs, stepsOf(task), task.result?.runs].find((some) => some?.length > 0) ?? [];
  return (
    <>
      <h1>{task.what} {task.id.slice(0, 8)} <State task={task} lost={lost} /></h1>
      <Lost lost={lost} />
      <p>{askedWords(task.asked)}</p>
      <p class="quiet">created {day(task.created)}{task.started && `, started ${day(task.started)}`}{task.ended && `, ended ${day(task.ended)} after ${span(task)}`}</p>
      {progress && known(progress.done) && known(progress.of) && <progress max={progress.of} value={progress.done} aria-label="Progress" />}
      <p><span aria-live="polite">{progressWords(task, runs.at(-1)?.loss)}</span> <Eta task={task} lost={lost} /></p>
      <div class="row">
        {!ended(task) && <button type="button" class="plain" disabled={ending || Boolean(lost)} onClick={cancel}>{ending ? "It is being cancelled" : "Cancel"}</button>}
        <Copy />
        <a href={link("tasks")}>All tasks</a>
      </div>
      <Problem problem={refused} />
      <Problem problem={problem} />
      <Problem problem={task.problem} />
      {task.result && <Found task={task} />}
      {rows.length > 0 && (LEARNS.has(task.what) ? <Trained rows={rows} /> : <Measured runs={rows} />)}
      {task.result && <details class="words"><summary>Result, as JSON</summary><pre>{JSON.stringify(task.result, null, 2).slice(0, 20000)}</pre></details>}
      <details class="words"><summary>Asked, as JSON</summary><pre>{JSON.stringify(task.asked, null, 2)}</pre></details>
    </>
  );
}

// The end as the task foresees it, with its band, counted from when it said so.
function Eta({ task, lost }) {
  const { eta_seconds: eta, at } = task.progress ?? {};
  const live = !lost && task.state === "running" && known(eta?.p50);
  const [, setTurn] = useState(0);
  useEffect(() => {
    if (!live) return undefined;
    const timer = setInterval(() => setTurn((turn) => turn + 1), 1000);
    return () => clearInterval(timer);
  }, [live]);
  if (!live) return null;
  const since = at ? Math.max(0, (Date.now() - Date.parse(at)) / 1000) : 0;
  const left = (seconds) => (known(seconds) ? duration(Math.max(0, seconds - since)) : "no end in sight");
  if (known(eta.p95) && eta.p95 <= since) return <b>it takes longer than foreseen</b>;
  return <b>done in {left(eta.p50)} (5–95 %: {left(eta.p05)} to {left(eta.p95)})</b>;
}

// What a row of a training says beside the metric of its target.
const PLAIN = new Set(["workload", "steps", "samples", "effective_samples", "seconds", "dollars", "noise_scale", "workers", "global_batch", "note"]);

const LEARNS = new Set(["train", "encoder"]); // their rows are steps, not runs

const some = (runs, name) => runs.filter((run) => known(run[name]));

function Series({ title, x, y, series }) {
  const points = series.flatMap((one) => one.points);
  if (points.length < 2) return null;
  return <Plot title={title} height={220} summary={`${title}: ${points.length} points, the last ${y.format(points.at(-1).y)}; the figures follow as a table`} x={x} y={y} series={series} />;
}

const ELASTIC = [
  { name: "workers", label: "workers", figure: true },
  { name: "global_batch", label: "global batch", figure: true },
  { name: "noise_scale", label: "noise scale", figure: true, show: (row) => (known(row.noise_scale) ? number(row.noise_scale) : "") },
];

function Trained({ rows }) {
  const metrics = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !PLAIN.has(name));
  const reached = known(rows[0].samples) ? "samples" : "steps";
  const time = durationsIn(rows.map((row) => row.seconds)).write;
  const over = timeAxis("time", rows.map((row) => ({ x: row.seconds })), false, ["x"]);
  const plotted = (name, x) => some(rows, name).map((row) => ({
    x: row[x], y: row[name], words: known(row.workers) ? `${row.workers} workers, batch ${row.global_batch}` : "",
  }));
  const spread = (name) => { // decades are read on a logarithmic axis
    const values = some(rows, name).map((row) => row[name]);
    return Math.min(...values) > 0 && Math.max(...values) > 100 * Math.min(...values);
  };
  const plain = (label, more) => ({ label, format: (v) => number(v), ...more });
  const columns = [
    { name: "steps", label: "steps", figure: true, show: (row) => whole(row.steps) },
    ...(reached === "samples" ? [{ name: "samples", label: "samples", figure: true, show: (row) => whole(row.samples) }] : []),
    ...(some(rows, "seconds").length ? [{ name: "seconds", label: "time", figure: true, show: (row) => time(row.seconds) }] : []),
    ...(rows.some((row) => row.dollars > 0) ? [{ name: "dollars", label: "cost", figure: true, show: (row) => dollars(row.dollars) }] : []),
    ...(reached === "samples" ? ELASTIC : []),
    ...metrics.map((name) => ({ name, label: name, figure: true, show: (row) => text(row[name]) })),
    ...(reached === "samples" ? [{ name: "note", label: "what happened", grow: true, sort: (row) => row.note, show: (row) => (metrics.some((name) => known(row[name])) ? "" : row.note) }] : []),
  ];
  return (
    <>
      <div class="halves">
        {metrics.map((name) => (
          <Series key={name} title={`Convergence: ${name}`} x={{ label: reached, format: (v) => si(v, "").trim() }} y={plain(name, { log: spread(name) })} series={[{ label: name, colour: "--accent", points: plotted(name, reached) }]} />
        ))}
        <Series title="Gradient noise scale" x={over} y={plain("samples")} series={[{ label: "noise scale: the batch at which a step's gradient is half noise", colour: "--accent", points: plotted("noise_scale", "seconds") }]} />
        <Series title="Workers" x={over} y={plain("workers", { whole: true })} series={[{ label: "workers", colour: "--accent", stairs: true, points: plotted("workers", "seconds") }]} />
        <Series title="Global batch" x={over} y={plain("samples", { whole: true })} series={[{ label: "global batch", colour: "--accent", stairs: true, points: plotted("global_batch", "seconds") }]} />
      </div>
      <Table caption="What happened, newest first" columns={columns} rows={[...rows].reverse()} most={50} />
    </>
  );
}

// What runs may say as they come, each drawn where at least two of them do.
const SERIES = [["step_time_s", "Step time of each run", "step time"], ["time_to_train_s", "Time of each whole run", "whole run"]];

function Measured({ runs }) {
  const names = [...new Set(runs.map((run) => run.workload))];
  const x = { label: "run, in the order measured", format: whole, at: runs.map((_, i) => i + 1) };
  return (
    <>
      <div class="halves">
        {SERIES.map(([name, title, label]) => {
          const points = runs.map((run, i) => ({
            x: i + 1, y: run[name], of: run.workload,
            words: [known(run.devices) && `${run.devices} devices`, known(run.global_batch) && `batch ${run.global_batch}`].filter(Boolean).join(", "),
          })).filter((point) => point.y > 0);
          const series = names.map((one, i) => ({ label: one, ...looksOf(i), line: false, size: 8, points: points.filter((point) => point.of === one) }));
          return <Series key={name} title={title} x={x} y={timeAxis(label, points)} series={series.filter((one) => one.points.length)} />;
        })}
      </div>
      <Table caption={`${runs.length} runs measured`} columns={runColumns(runs)} rows={runs} />
    </>
  );
}

const CONFIGURATIONS = [
  { name: "workers", label: "workers", figure: true },
  { name: "global_batch", label: "global batch", figure: true },
  { name: "step_seconds", label: "step", figure: true, show: (row) => duration(row.step_seconds) },
  { name: "steps", label: "steps observed", figure: true, show: (row) => whole(row.steps) },
];
const TRIALS = [
  { name: "configuration", label: "configuration", grow: true, sort: (row) => settings(row.configuration), show: (row) => settings(row.configuration) },
  { name: "seconds", label: "time", figure: true, show: (row) => (known(row.seconds) ? duration(row.seconds) : "") },
  { name: "dollars", label: "cost", figure: true, show: (row) => (row.dollars > 0 ? dollars(row.dollars) : "") },
  { name: "status", label: "status" },
  { name: "reason", label: "why it was chosen" },
];
const settings = (one) => Object.entries(one ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${text(value)}`).join(", ");

const learnedFrom = ({ fitted_runs: fitted, runs }) => `${whole(fitted ?? runs?.rows_that_teach_time)} runs`;
const costing = (paid) => (paid > 0 ? `, ${dollars(paid)}` : ""); // 0: no price was given

// The losses of an encoder as the rows of its training, where its events are not kept: they come at equal steps.
const stepsOf = ({ what, result, progress }) => (what !== "encoder" ? [] : (result?.losses ?? []).map((loss, i, every) => ({
  steps: ((i + 1) * (progress?.done ?? every.length)) / every.length, loss,
})));

// What a task found, in words; the whole of it lies below as JSON.
function Found({ task }) {
  const { asked, result, what } = task;
  if (what === "recommend" && result.best) return <p>Best: <b>{result.best.job.cluster.name}</b>, {duration(result.best.wall_seconds?.p50)}. <a href={link("recommend", asked)}>See it whole</a></p>;
  if (what === "fit") return <p>Fitted {result.predictor} to {learnedFrom(result)}. {asked.name && <a href={link("ask", { model: asked.name })}>Ask with the model {asked.name}</a>}</p>;
  if (what === "encoder") {
    const { losses = [], out } = result;
    return (
      <p>
        Kept as {out}: {result.predictor} with the encoder that was trained on the networks of {learnedFrom(result)}.
        {losses.length > 0 && <> Its loss was {number(losses[0])} at first and is <b>{number(losses.at(-1))}</b> at the end.</>}{" "}
        <a href={link("ask", { model: out })}>Ask with the model {out}</a>
      </p>
    );
  }
  if (what === "evaluate") return <p><a href={link("leaderboard")}>See the leaderboard</a></p>;
  if (what === "campaign" && !result.made) return <p>{result.left ? `${result.left} runs are left.` : `Nothing was left to measure: all ${result.points} points have their runs.`} <a href={link("runs")}>See the runs</a></p>;
  if (what === "campaign") return <p>{[...Object.entries(result.made).map(([name, n]) => `${n} ${name}`), result.before > 0 && `${result.before} made before`].filter(Boolean).join(", ") || "no run"} in {duration(result.seconds)}{costing(result.dollars)}. {result.stopped}</p>;
  if (what === "train" && result.configurations) {
    return (
      <>
        <p>Ended: {result.ended}. {whole(result.steps)} steps, {whole(result.position)} samples, {duration(result.seconds)}{costing(result.dollars)}; noise scale {number(result.phi)}.</p>
        <Table caption="Configurations that were observed (medians)" columns={CONFIGURATIONS} rows={result.configurations} />
      </>
    );
  }
  const [search] = result.searches ?? [];
  if (!search) return null;
  return (
    <>
      <p>{search.recommended ? <>Best: <b>{settings(search.recommended.configuration)}</b>. </> : "No configuration can be recommended. "}{search.stopped}.</p>
      <Table caption={`Trials, time as ${result.times}`} columns={TRIALS} rows={search.runs} />
    </>
  );
}
