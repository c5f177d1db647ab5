// Tasks: campaigns, searches, fits and elastic jobs, live by server-sent events.
import { useEffect, useState } from "preact/hooks";
import { events, get, page, post } from "../api.js";
import { day, dollars, duration, known, number, si, text, whole } from "../format.js";
import { Choice, Copy, Field, Problem, Shown, Table, useAnswer, useForm } from "../parts.jsx";
import { Plot } from "../plot.jsx";
import { link } from "../route.js";
import { runColumns } from "./lists.jsx";

const WHATS = ["campaign", "search", "fit", "evaluate", "recommend", "train"];
const STATES = ["waiting", "running", "done", "failed", "cancelled"];
const ended = (task) => ["done", "failed", "cancelled"].includes(task.state);

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
      return { ...body, next };
    } catch (error) {
      if (error.status === 404) return { none: error };
      throw error;
    }
  }, `${path} ${turn}`);
  useEffect(() => {
    if (!answer.value?.tasks?.some((task) => !ended(task))) return undefined;
    const timer = setTimeout(() => setTurn(turn + 1), 3000);
    return () => clearTimeout(timer);
  }, [answer.value]);
  return (
    <>
      <h1>Tasks</h1>
      <form class="bar-form" onSubmit={form.submit} aria-label="Which tasks">
        <Choice label="What" name="what" form={form} options={[["", "all"], ...WHATS]} />
        <Choice label="State" name="state" form={form} options={[["", "all"], ...STATES]} />
        <button>Show</button>
        <Copy />
      </form>
      <Shown answer={answer} words="Reading tasks">{(found) => (found.none ? <None problem={found.none} /> : <Listed tasks={found.tasks} />)}</Shown>
      {!answer.value?.none && <Start what={what || "fit"} key={what} />}
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

const State = ({ task }) => <span class={`tag ${task.state}`}>{task.state}</span>;

function span(task) {
  const from = Date.parse(task.started ?? task.created);
  return duration(Math.max(0, ((task.ended ? Date.parse(task.ended) : Date.now()) - from) / 1000));
}

function Listed({ tasks }) {
  const columns = [
    { name: "id", label: "task", show: (task) => <a href={link("tasks", { id: task.id })}>{task.what} {task.id.slice(0, 8)}</a> },
    { name: "state", label: "state", show: (task) => <State task={task} /> },
    { name: "progress", label: "progress", sort: (task) => task.progress?.done, show: (task) => progressWords(task) },
    { name: "created", label: "created", show: (task) => day(task.created) },
    { name: "time", label: "took", figure: true, sort: (task) => Date.parse(task.ended ?? task.started ?? task.created), show: (task) => (task.started ? span(task) : "") },
    { name: "asked", label: "asked", grow: true, sort: (task) => text(task.asked), show: (task) => <code>{text(task.asked).slice(0, 160)}</code> },
  ];
  return tasks.length ? <Table caption="Newest first" columns={columns} rows={tasks} keyOf={(task) => task.id} />
    : <p>No task is kept. Start one below.</p>;
}

function progressWords({ progress, what }) {
  if (!progress) return "";
  const { done, of, note } = progress;
  const far = done + of > 0 ? `${whole(done)}${known(of) ? ` of ${whole(of)}` : ""}${what === "train" ? " steps" : ""}` : "";
  return [far, note].filter(Boolean).join(": ");
}

function Start({ what: first }) {
  const [what, setWhat] = useState(WHATS.includes(first) ? first : "fit");
  const [body, setBody] = useState("");
  const [problem, setProblem] = useState(null);
  const api = useAnswer((signal) => get("openapi.json", { signal }), "api").value;
  const example = api?.paths[`/v1/tasks/${what}`]?.post.requestBody.content["application/json"].example;
  useEffect(() => setBody(example ? JSON.stringify(example, null, 2) : ""), [what, api]);
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
    <details class="words" open={Boolean(first && first !== "fit")}>
      <summary>Start a task</summary>
      <form class="ask" onSubmit={start} aria-label="A new task">
        <Choice label="What" name="start" form={form} options={WHATS} />
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
  useEffect(() => {
    const stop = new AbortController();
    const failed = (error) => stop.signal.aborted || setProblem(error);
    const path = `tasks/${encodeURIComponent(id)}`;
    const read = () => get(path, { signal: stop.signal, fresh: true }).then((body) => setTask(body.task), failed);
    read();
    events(`${path}/events`, (kind, data) => {
      if (kind === "run") setRuns((before) => [...before, data]);
      else setTask((before) => ({ ...before, ...data }));
    }, stop.signal).then(read, failed); // what it found comes with the task
    return () => stop.abort();
  }, [id]);
  const cancel = async () => {
    try {
      setTask((await post(`tasks/${encodeURIComponent(id)}/cancel`, {})).task);
    } catch (error) {
      setRefused(error);
    }
  };
  if (!task) return <><h1>Task {id}</h1>{problem ? <Problem problem={problem} /> : <p class="waits" aria-busy="true">Reading the task …</p>}</>;
  const { progress } = task;
  return (
    <>
      <h1>{task.what} {task.id.slice(0, 8)} <State task={task} /></h1>
      <p class="quiet">created {day(task.created)}{task.started && `, started ${day(task.started)}`}{task.ended && `, ended ${day(task.ended)} after ${span(task)}`}</p>
      {progress && known(progress.done) && known(progress.of) && <progress max={progress.of} value={progress.done} aria-label="Progress" />}
      <p aria-live="polite">{progressWords(task)} <Eta task={task} /></p>
      <div class="row">
        {!ended(task) && <button type="button" class="plain" onClick={cancel}>Cancel</button>}
        <Copy />
        <a href={link("tasks")}>All tasks</a>
      </div>
      <Problem problem={refused} />
      <Problem problem={problem} />
      <Problem problem={task.problem} />
      <Followed runs={runs} what={task.what} />
      {task.result && (
        <details class="words" open={text(task.result).length < 2000}>
          <summary>Result</summary>
          <Result task={task} />
        </details>
      )}
      <details class="words"><summary>Asked</summary><pre>{JSON.stringify(task.asked, null, 2)}</pre></details>
    </>
  );
}

// The end as the task foresees it, with its band where it gives one; else by the pace until now.
function Eta({ task }) {
  const { progress, state } = task;
  if (state !== "running" || !progress) return null;
  const left = progress.eta_seconds;
  if (left && typeof left === "object") return <b>done in {duration(left.p50)} (5–95 %: {duration(left.p05)} to {duration(left.p95)})</b>;
  if (known(left)) return <b>done in {duration(left)}</b>;
  if (!(progress.done > 0 && progress.of > progress.done) || !task.started) return null;
  const pace = (Date.now() - Date.parse(task.started)) / 1000 / progress.done;
  return <b>done in about {duration(pace * (progress.of - progress.done))} at the pace until now</b>;
}

// What runs may say as they come, each drawn where at least two of them do.
const SERIES = [
  ["step_time_s", "Step time", "step", duration, true],
  ["noise_scale", "Gradient noise scale", "samples", (v) => number(v), true],
  ["time_to_train_s", "Whole run", "time", duration, true],
];
// What a row of a training says beside the metric of its target.
const PLAIN = new Set(["workload", "steps", "samples", "effective_samples", "seconds", "dollars", "noise_scale"]);

function Followed({ runs, what }) {
  if (!runs.length) return null;
  const train = what === "train";
  const metrics = train ? [...new Set(runs.flatMap((run) => Object.keys(run)))].filter((name) => !PLAIN.has(name)) : [];
  const drawn = [...metrics.map((name) => [name, `Convergence: ${name}`, name, (v) => number(v), false]), ...SERIES];
  const columns = train ? [
    { name: "steps", label: "steps", figure: true, show: (run) => whole(run.steps) },
    { name: "samples", label: "samples", figure: true, show: (run) => whole(run.samples) },
    { name: "seconds", label: "time", figure: true, show: (run) => duration(run.seconds) },
    { name: "dollars", label: "cost", figure: true, show: (run) => dollars(run.dollars) },
    { name: "noise_scale", label: "noise scale", figure: true, show: (run) => (known(run.noise_scale) ? number(run.noise_scale) : "") },
    ...metrics.map((name) => ({ name, label: name, figure: true, show: (run) => text(run[name]) })),
  ] : runColumns(runs);
  return (
    <>
      <div class="halves">
        {drawn.map(([name, title, label, format, log]) => {
          const points = runs.map((run, i) => ({ x: train ? run.samples : i + 1, y: run[name], words: [run.workload, known(run.devices) && `${run.devices} devices`, known(run.global_batch) && `batch ${run.global_batch}`].filter(Boolean).join(", ") }))
            .filter((point) => known(point.y) && (!log || point.y > 0));
          return points.length > 1 && (
            <Plot
              key={name} title={title} height={220} summary={`${title}: ${points.length} runs, the last ${format(points.at(-1).y)}; the figures follow as a table`}
              x={train ? { label: "samples", format: (v) => si(v, "") } : { label: "run", format: whole, at: points.map((point) => point.x) }} y={{ label, format, log, time: format === duration }} series={[{ label, colour: "--accent", points }]}
            />
          );
        })}
      </div>
      <Table caption={train ? `${runs.length} measurements of the training` : `${runs.length} runs measured`} columns={columns} rows={runs} />
    </>
  );
}

function Result({ task }) {
  const { asked, result, what } = task;
    return (
    <>
      {what === "recommend" && result.best && <p>Best: <b>{result.best.job.cluster.name}</b>, {duration(result.best.wall_seconds?.p50)}. <a href={link("recommend", asked)}>See it whole</a></p>}
      {what === "fit" && asked.name && <p><a href={link("ask", { model: asked.name })}>Ask with the model {asked.name}</a></p>}
      {what === "evaluate" && <p><a href={link("leaderboard")}>See the leaderboard</a></p>}
      <pre>{JSON.stringify(result, null, 2).slice(0, 20000)}</pre>
    </>
  );
}
