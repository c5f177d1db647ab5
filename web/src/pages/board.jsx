// Leaderboard: how well each predictor forecasts measured runs, and whether its bands hold.
import { useMemo } from "preact/hooks";
import { get } from "../api.js";
import { known, number, percent, whole } from "../format.js";
import { Choice, Copy, Shown, Table, useAnswer, useForm } from "../parts.jsx";
import { Plot } from "../plot.jsx";
import { link } from "../route.js";

// Rows of either shape: a leaderboard's entries, or an evaluation's scores.
function rowsOf(body) {
  return (body.entries ?? body.scores ?? []).map((one) => ({
    ...one.score, ...one, split: one.split ?? body.split, share: one.share ?? one.share_answered,
  })).filter((one) => !one.group && one.table !== "all tables");
}

export function Leaderboard({ query }) {
  const form = useForm("leaderboard", query);
  const answer = useAnswer(async (signal) => {
    try {
      return await get("leaderboard", { signal, fresh: true });
    } catch (error) {
      if (error.status === 404) return { none: error };
      throw error;
    }
  }, "leaderboard");
  return (
    <>
      <h1>Predictors side by side</h1>
      <Shown answer={answer} words="Reading figures">{(found) => (found.none ? <None problem={found.none} /> : <Board found={found} form={form} />)}</Shown>
    </>
  );
}

function None({ problem }) {
  return (
    <section class="none">
      <p>No leaderboard is there yet: {problem.found}.</p>
      <p>
        Make one from measured runs: <a href={link("tasks", { what: "evaluate" })}>start an evaluate task</a>, or on the command line{" "}
        <code>forerun leaderboard --runs RUNS.csv --page LEADERBOARD.md</code>.
      </p>
    </section>
  );
}

function Board({ found, form }) {
  const every = useMemo(() => rowsOf(found), [found]);
  const tables = [...new Set(every.map((row) => row.table))].sort();
  const splits = [...new Set(every.map((row) => row.split).filter(Boolean))].sort();
  const { table = "", split = "" } = form.values;
  const rows = every.filter((row) => (!table || row.table === table) && (!split || row.split === split));
  const judged = rows.filter((row) => known(row.coverage) && known(row.median_ape));
  const counts = (row) => known(row.median_ape) && row.share >= 0.9;
  const leads = (row) => counts(row) && !every.some((other) => other.table === row.table && other.split === row.split
    && counts(other) && other.median_ape < row.median_ape);
  const columns = [
    { name: "predictor", label: "predictor", show: (row) => (row.best || leads(row) ? <b>{row.predictor} *</b> : row.predictor) },
    { name: "table", label: "table" },
    { name: "split", label: "split" },
    { name: "median_ape", label: "median error", figure: true, show: (row) => (known(row.median_ape) ? `${number(row.median_ape)} %` : "") },
    { name: "mape", label: "mean error", figure: true, show: (row) => (known(row.mape) ? `${number(row.mape)} %` : "") },
    { name: "coverage", label: "inside 5–95 %", figure: true, show: (row) => (known(row.coverage) ? `${percent(row.coverage)} (${percent(row.coverage_low)} to ${percent(row.coverage_high)})` : "") },
    { name: "share", label: "answered", figure: true, show: (row) => percent(row.share) },
    { name: "rows", label: "rows", figure: true, show: (row) => (known(row.rows) ? whole(row.rows) : "") },
    { name: "reason", label: "note", show: (row) => row.reason ?? "" },
  ];
  const predictors = [...new Set(judged.map((row) => row.predictor))];
  const point = (row) => ({ x: row.median_ape, y: 100 * row.coverage, low: 100 * row.coverage_low, high: 100 * row.coverage_high, words: `${row.predictor}, ${row.table} ${row.split}` });
  return (
    <>
      <form class="bar-form" onSubmit={form.submit} aria-label="Which figures">
        <Choice label="Table" name="table" form={form} options={[["", "all"], ...tables]} />
        <Choice label="Split" name="split" form={form} options={[["", "all"], ...splits]} />
        <button>Show</button>
        <Copy />
      </form>
      {judged.length > 0 && (
        <Plot
          title="Calibration: share of measured times inside the 5–95 % band (line: 90 %)" line={90} height={280}
          summary={`${judged.length} figures of ${predictors.length} predictors: coverage of their bands by their median error; the figures follow as a table`}
          x={{ label: "median error", format: (v) => `${number(v)} %`, log: true }} y={{ label: "inside the band", format: (v) => `${number(v)} %` }}
          series={[{ label: "a predictor on a table, with the 95 % interval of its share", colour: "--accent", line: false, points: judged.map(point) }]}
        />
      )}
      <Table caption="Held-out rows only; * is the best of a table that answered at least 90 % of its rows" columns={columns} rows={rows} sorted="median_ape" most={50} />
    </>
  );
}
