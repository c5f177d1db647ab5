// What pages are made of: fields, answers that load, problems, bands, tables.
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { get, passes, token, upload } from "./api.js";
import { day } from "./format.js";
import { clusterNames, UNITS } from "./jobs.js";
import { go } from "./route.js";

// How often the token has changed.
export function useTokenTurn() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const changed = () => setTurn((before) => before + 1);
    addEventListener("forerun-token", changed);
    return () => removeEventListener("forerun-token", changed);
  }, []);
  return turn;
}

// What a question answers: {value}, {problem} or {waits}; asked anew as `key` or the token changes. Where the problem is one
// that passes, the last value stays, and `lost` says how often it was asked in vain, and since when.
export function useAnswer(ask, key) {
  const [state, setState] = useState({ waits: true });
  const turn = useTokenTurn();
  useEffect(() => {
    if (!ask) return setState({});
    const stop = new AbortController();
    setState(({ value, lost }) => ({ value, lost, waits: true }));
    ask(stop.signal).then(
      (value) => stop.signal.aborted || setState({ value }),
      (problem) => stop.signal.aborted || setState(({ value, lost }) => (passes(problem)
        ? { value, problem, lost: { problem, since: lost?.since ?? new Date(), tries: (lost?.tries ?? -1) + 1 } } : { problem })),
    );
    return () => stop.abort();
  }, [key, turn]);
  return state;
}

export function useList(name) {
  const { value } = useAnswer(() => get(name), name);
  return value?.[name] ?? [];
}

export function Problem({ problem }) {
  if (!problem) return null;
  return (
    <div class="problem" role="alert">
      <p><b>Asked</b> {problem.asked}</p>
      <p><b>Found</b> {problem.found}</p>
      <p><b>Next</b> {problem.next}</p>
    </div>
  );
}

// What a page that follows something shows while the service does not answer: it tries again by itself.
export function Lost({ lost }) {
  if (!lost) return null;
  return (
    <div class="problem" role="status">
      <p><b>Found</b> {lost.problem.status ? lost.problem.found : "the service does not answer"}, since {day(lost.since.toISOString())}. What is shown is as of then.</p>
      <p><b>Next</b> this page tries again by itself, at most 10 s apart; see whether <code>forerun serve</code> still runs.</p>
    </div>
  );
}

const PHONE = matchMedia("(max-width: 760px)");

// Whether the page has the width of a phone.
export function useNarrow() {
  const [narrow, setNarrow] = useState(PHONE.matches);
  useEffect(() => {
    const changed = () => setNarrow(PHONE.matches);
    PHONE.addEventListener("change", changed);
    return () => PHONE.removeEventListener("change", changed);
  }, []);
  return narrow;
}

// The form of a page. On a phone it folds once something is asked, so that the answer comes first.
export function Asking({ label, title, form, asked, children }) {
  const narrow = useNarrow();
  const [open, setOpen] = useState(!narrow || !asked);
  useEffect(() => setOpen(!narrow || !asked), [narrow, asked]);
  return (
    <section class="asking">
      <h1>{title}</h1>
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>{asked ? "Change the question" : "The question"}</summary>
        <form class="ask" onSubmit={form.submit} aria-label={label}>{children}</form>
      </details>
    </section>
  );
}

let follow = false; // after a form is submitted its answer is scrolled into view, where it lies below

// What an answer shows while it loads, when it fails, and when it is there.
export function Shown({ answer, words = "Computing", children }) {
  const place = useRef();
  useEffect(() => {
    if (!follow || answer.waits) return;
    follow = false;
    if (place.current.getBoundingClientRect().top > innerHeight * 0.7) place.current.scrollIntoView();
  }, [answer]);
  return (
    <div class="answer" aria-busy={Boolean(answer.waits)} ref={place}>
      <div aria-live="polite" class="waits">{answer.waits && `${words} …`}</div>
      {answer.problem ? <Problem problem={answer.problem} /> : answer.value && children(answer.value)}
    </div>
  );
}

export function Field({ label, hint, wide, children }) {
  const id = useId();
  return (
    <div class={wide ? "field wide" : "field"}>
      <label for={id}>{label}</label>
      {children(id)}
      {hint && <small id={`${id}-hint`}>{hint}</small>}
    </div>
  );
}

// A text with names that complete it.
export function Text({ label, hint, name, form, list, required, kind = "text", wide, placeholder }) {
  const names = useId();
  return (
    <Field label={label} hint={hint} wide={wide}>
      {(id) => (
        <>
          <input
            id={id} name={name} type={kind} required={required} placeholder={placeholder} autocomplete="off"
            spellcheck={false} list={list && names} value={form.values[name] ?? ""}
            aria-describedby={hint && `${id}-hint`} onInput={(event) => form.set(name, event.target.value)}
          />
          {list && <datalist id={names}>{list.map((one) => <option key={one} value={one} />)}</datalist>}
        </>
      )}
    </Field>
  );
}

export function Choice({ label, hint, name, form, options }) {
  return (
    <Field label={label} hint={hint}>
      {(id) => (
        <select
          id={id} name={name} value={form.values[name] ?? ""}
          onChange={(event) => form.set(name, event.target.value)}
        >
          {options.map((one) => {
            const [value, words] = Array.isArray(one) ? one : [one, one];
            return <option key={value} value={value}>{words}</option>;
          })}
        </select>
      )}
    </Field>
  );
}

export function Workload({ form, ...rest }) {
  const workloads = useList("workloads");
  const names = useMemo(() => workloads.map((row) => row.name), [workloads]);
  return <Text label="Workload" name="workload" form={form} list={names} required placeholder="llama3-8b" {...rest} />;
}

// A file of one's own as the workload: it is kept by the service, and its name goes into the field above.
export function Upload({ form }) {
  const [state, setState] = useState({});
  const send = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    setState({ words: `Reading ${file.name} …` });
    try {
      const { upload: name, workload } = await upload(file);
      form.set("workload", name);
      setState({ words: `${file.name} is read: ${[workload.family, workload.precision, workload.optimizer].filter(Boolean).join(", ")}. Now ask.` });
    } catch (problem) {
      setState({ problem });
    }
  };
  return (
    <Field label="or a file of yours" hint="an ONNX graph, a config.json of HuggingFace, a YAML spec">
      {(id) => (
        <>
          <input id={id} type="file" accept=".onnx,.json,.yaml,.yml" aria-describedby={`${id}-hint`} onChange={send} />
          <span aria-live="polite">{state.words}</span>
          <Problem problem={state.problem} />
        </>
      )}
    </Field>
  );
}

export function useClusterNames(text) {
  const devices = useList("devices");
  const machines = useList("instances");
  return useMemo(
    () => clusterNames(text ?? "", devices.map((row) => row.id), [...new Set(machines.map((row) => row.name))]),
    [text, devices, machines],
  );
}

export function Cluster({ form, label = "Cluster", name = "cluster", ...rest }) {
  const names = useClusterNames(form.values[name]);
  return (
    <Text
      label={label} name={name} form={form} list={names} required placeholder="4x8xh100-sxm-80gb"
      hint="nodes x devices x device, or nodes x instance" {...rest}
    />
  );
}

export function Length({ form }) {
  return (
    <div class="pair">
      <Text label="Length" name="count" form={form} placeholder="usual" hint="10B, 90 …" />
      <Choice label="Unit" name="unit" form={form} options={UNITS} />
    </div>
  );
}

export const FRAMEWORKS = ["", "pytorch", "deepspeed", "fsdp", "torchtitan", "megatron", "nemo", "jax", "tensorflow"];

// Rarely stated parts of a job.
export function More({ form, children }) {
  return (
    <details class="more" open={["precision", "seq_len", "market", "region", "price", "model"].some((n) => form.values[n])}>
      <summary>More of the job</summary>
      {children}
      <Text label="Precision" name="precision" form={form} list={["bf16", "fp16", "fp32", "fp8"]} placeholder="the workload's" />
      <Text label="Sequence length" name="seq_len" form={form} placeholder="the workload's" hint="tokens" />
      <Choice label="Market" name="market" form={form} options={[["", "on demand"], ["spot", "spot"]]} />
      <Text label="Region" name="region" form={form} placeholder="the cheapest" />
      <Text label="Model" name="model" form={form} placeholder="the one that is served" hint="by the name that a fit task gave it" />
    </details>
  );
}

// A form whose texts are those of the address; to submit it makes the address that asks.
export function useForm(page, query, usual = {}) {
  const text = query.toString();
  const given = useMemo(() => ({ ...usual, ...Object.fromEntries(query) }), [text]);
  const [values, setValues] = useState(given);
  useEffect(() => setValues(given), [text]);
  return {
    values, given,
    set: (name, value) => setValues((before) => ({ ...before, [name]: value })),
    submit: (event) => {
      event.preventDefault();
      follow = true;
      go(page, values);
    },
  };
}

export function Copy() {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      setDone("copied");
    } catch {
      setDone("copy it from the address bar");
    }
  };
  return (
    <span class="copy">
      <button type="button" class="plain" onClick={copy}>Copy link</button>
      <span aria-live="polite">{done}</span>
    </span>
  );
}

// A median's 5-95 % band in words and as a bar from zero; most: where the bars of several end.
export function Band({ band, write, limit, most }) {
  if (!band) return <span class="quiet">unknown</span>;
  const end = Math.max(band.p95, limit ?? 0, most ?? 0) * 1.05 || 1;
  const at = (value) => `${Math.min(100, (100 * value) / end)}%`;
  return (
    <span class="band">
      <span class="range">5–95 %: {write(band.p05)} to {write(band.p95)}</span>
      <span class="track" aria-hidden="true">
        <i class="span" style={{ left: at(band.p05), width: at(band.p95 - band.p05) }} />
        <i class="mark" style={{ left: at(band.p50) }} />
        {limit && <i class="limit" style={{ left: at(limit) }} />}
      </span>
    </span>
  );
}

export function Key({ label, value, children, tone }) {
  return (
    <div class={`key ${tone ?? ""}`}>
      <dt>{label}</dt>
      <dd>
        <strong>{value}</strong>
        {children}
      </dd>
    </div>
  );
}

// first: it is open on a phone too.
export function Words({ title, items, open = true, first = false }) {
  const narrow = useNarrow();
  if (!items?.length) return null;
  return (
    <details class="words" open={open && (first || !narrow)}>
      <summary>{title} <span class="quiet">({items.length})</span></summary>
      <ul>{items.map((one) => <li key={one}>{one}</li>)}</ul>
    </details>
  );
}

// Shares of a whole as bars, each with its figure; from: where a bar begins (a waterfall).
export function Bars({ label, rows, write, fall }) {
  const whole = fall ? rows.reduce((sum, row) => sum + row.value, 0) : Math.max(...rows.map((row) => row.value));
  let before = 0;
  return (
    <table class="bars" role="table" aria-label={label}>
      <tbody role="rowgroup">
        {rows.map((row) => {
          const left = fall && !row.total ? before : 0;
          if (fall) before += row.value;
          return (
            <tr key={row.name} role="row">
              <th scope="row" role="rowheader">{row.name}</th>
              <td class="bar" role="presentation" aria-hidden="true">
                <i class={row.tone} style={{ left: `${(100 * left) / whole}%`, width: `${Math.max((100 * row.value) / whole, 0.4)}%` }} />
              </td>
              <td role="cell" class="figure">{write(row.value)}</td>
              <td role="cell" class="figure quiet">{row.note}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

// Rows under headings that sort. At phone width each row is a block, cells say their column, and few are shown at first.
export function Table({ caption, columns, rows, most = 200, keyOf, chosen, onChoose, sorted = "" }) {
  const [order, setOrder] = useState({ name: sorted, down: false });
  const narrow = useNarrow();
  const [more, setMore] = useState(0);
  const page = narrow ? Math.min(most, 8) : most;
  const shown = page + more;
  const live = useRef();
  const every = useMemo(() => {
    if (!order.name) return rows;
    const column = columns.find((one) => one.name === order.name);
    const value = column?.sort ?? ((row) => row[order.name]);
    const kept = rows.filter((row) => value(row) !== null && value(row) !== undefined);
    const lacking = rows.filter((row) => !kept.includes(row));
    kept.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (order.down ? -1 : 1));
    return [...kept, ...lacking];
  }, [rows, order, columns]);
  const turn = (name) => {
    const down = order.name === name && !order.down;
    setOrder({ name, down });
    live.current.textContent = `sorted by ${columns.find((one) => one.name === name).label}, ${down ? "largest" : "smallest"} first`;
  };
  return (
    <div class="table">
      <span class="unseen" aria-live="polite" ref={live} />
      <table role="table">
        <caption>{caption}</caption>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map((one) => (
              <th
                key={one.name} scope="col" role="columnheader" class={one.figure ? "figure" : ""}
                aria-sort={order.name === one.name ? (order.down ? "descending" : "ascending") : "none"}
              >
                <button type="button" onClick={() => turn(one.name)}>{one.label}</button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {every.slice(0, shown).map((row, index) => (
            <tr
              key={keyOf ? keyOf(row) : index} role="row" class={chosen?.(row) ? "chosen" : ""}
              onClick={onChoose && (() => onChoose(row))}
            >
              {columns.map((one) => (
                <td key={one.name} role="cell" data-label={one.label} class={`${one.figure ? "figure" : ""} ${one.grow ? "grow" : ""}`}>
                  {one.show ? one.show(row) : row[one.name]}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length === 0 && <p class="quiet">none</p>}
      {every.length > shown && (
        <button type="button" class="plain" onClick={() => setMore(more + most)}>
          Show {Math.min(most, every.length - shown)} more of {every.length.toLocaleString("en-US")}
        </button>
      )}
    </div>
  );
}

// Asks for the token once, where the service wants one; it stays in this tab.
export function TokenGate() {
  const [needed, setNeeded] = useState(null); // {path, status} of what was refused
  const field = useRef();
  useEffect(() => {
    const changes = {
      "forerun-token-needed": ({ detail }) => setNeeded((before) => before ?? detail),
      "forerun-answered": ({ detail }) => setNeeded((before) => (before?.path === detail.path ? null : before)),
      hashchange: () => setNeeded((before) => (before?.status === 403 ? null : before)), // another page may need less
    };
    for (const [name, change] of Object.entries(changes)) addEventListener(name, change);
    return () => Object.entries(changes).forEach(([name, change]) => removeEventListener(name, change));
  }, []);
  useEffect(() => {
    if (needed) field.current?.focus();
  }, [Boolean(needed)]);
  if (!needed) return null;
  const give = (event) => {
    event.preventDefault();
    setNeeded(null);
    token.set(field.current.value.trim());
  };
  return (
    <section class="gate" aria-label="Token">
      <form onSubmit={give}>
        <label for="token">This service asks for a token. It is kept in this tab alone, and sent with each request.</label>
        <div class="row">
          <input id="token" ref={field} type="password" autocomplete="off" required placeholder="forerun_…" />
          <button>Use it</button>
        </div>
        <small>Made by whoever runs the service: forerun serve token create --tokens FILE --scope read --scope predict</small>
      </form>
    </section>
  );
}
