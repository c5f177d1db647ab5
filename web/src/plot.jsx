// Plots by uPlot: lines with bands, points with error bars, a brush; each with its figures as a table.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Table } from "./parts.jsx";
import { dollars, dollarsIn, durationsIn, known } from "./format.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Series are told apart by colour and, where there are more than these, by hollow points.
const COLOURS = ["--accent", "--second", "--third", "--memory"];

export function looksOf(index) {
  return { colour: COLOURS[index % COLOURS.length], hollow: index >= COLOURS.length };
}

// An axis of durations in one unit, and one of dollars; points: all that lies on it.
export function timeAxis(label, points, log = true, names = ["y", "low", "high"]) {
  const { name, plain, write } = durationsIn(points.flatMap((point) => names.map((one) => point[one])));
  return { label: `${label}, ${name}`, format: write, tick: plain, log, time: true };
}

export function costAxis(label, points, log = true) {
  return { label, format: dollars, tick: dollarsIn(points.map((point) => point.y)), log };
}

// Series of points {x, y, low, high, left, right, words} on one ascending axis; others have nothing there.
function aligned(series) {
  const points = series
    .flatMap((one, index) => one.points.map((point) => ({ ...point, index })))
    .filter((point) => known(point.x) && known(point.y))
    .sort((a, b) => a.x - b.x);
  const columns = [points.map((point) => point.x)];
  const bands = [];
  series.forEach((one, index) => {
    const take = (name) => points.map((point) => (point.index === index && known(point[name]) ? point[name] : null));
    columns.push(take("y"));
    if (one.band) {
      columns.push(take("high"), take("low"));
      bands.push({ pair: [columns.length - 2, columns.length - 1], paint: one.colour });
    }
  });
  return { points, columns, bands };
}

function reach(points, { log, at }, low, middle, high) {
  if (at && !log) return [Math.min(...at) - 0.5, Math.max(...at) + 0.5];
  const found = points.flatMap((point) => [point[low], point[middle], point[high]]).filter((v) => known(v) && (!log || v > 0));
  if (!found.length) return [log ? 0.1 : 0, 1];
  const [least, most] = [Math.min(...found), Math.max(...found)];
  return log ? [least / 1.3, most * 1.3] : [Math.min(0, least), most * 1.08 || 1];
}

// Round values from one end of a scale to the other: 1, 2, 5 in each decade; of time those of a clock.
const CLOCK = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 345600, 691200];

function round(time, least, most) {
  const made = [];
  for (let e = Math.floor(Math.log10(least)); e <= Math.ceil(Math.log10(most)); e += 1) {
    for (const m of [1, 2, 5]) made.push(m * 10 ** e);
  }
  return time ? [...made.filter((v) => v < 1), ...CLOCK, ...made.filter((v) => v > 1e6)] : made;
}

function splits({ log, time, at, whole }, room) {
  return (u, axis, least, most, increment, space) => {
    const most_ticks = Math.max(2, Math.floor(space ? room(u) / 60 : 6));
    const inside = (at ?? (log ? round(time, least, most) : [])).filter((v) => v >= least && v <= most);
    if (at || inside.length > 2) {
      const every = Math.ceil(inside.length / most_ticks);
      return inside.filter((_, i) => i % every === 0);
    }
    const step = round(time, (most - least) / 100, most - least).find((v) => (most - least) / v <= most_ticks && (!whole || v >= 1)) ?? increment;
    const made = [];
    for (let v = Math.ceil(least / step) * step; v <= most; v += step) made.push(v);
    return made;
  };
}

function build(host, { x, y, series, line, brush, onBrush, onPoint }, width, height) {
  const { points, columns, bands } = aligned(series);
  const drawn = [{}];
  series.forEach((one) => {
    const paint = () => colour(one.colour);
    drawn.push({
      stroke: paint, width: one.line === false ? 0 : 2, spanGaps: true, paths: one.line === false ? () => null : one.stairs ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: !one.stairs, size: one.size ?? (one.points.length > 60 ? 3 : 7), fill: one.hollow ? () => colour("--ground") : paint, stroke: paint, width: 1.5 },
    });
    if (one.band) for (const _ of "hl") drawn.push({ stroke: paint, width: 0, spanGaps: true, points: { show: false } });
  });
  const axis = (which, place) => ({
    stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 },
    label: which.label, labelSize: 18, size: place === "y" ? 62 : 28,
    splits: splits(which, (u) => (place === "y" ? 1.6 * u.height : u.width)), values: (u, values) => values.map(which.tick ?? which.format), filter: (u, values) => values,
    font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", gap: 4,
  });
  const scale = (which, names) => ({
    time: false, distr: which.log ? 3 : 1, range: reach(points, which, ...names),
  });
  const errors = (u) => {
    const { ctx } = u;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.globalAlpha = 0.55;
    for (const point of points) {
      if (series[point.index].band) continue;
      ctx.strokeStyle = colour(series[point.index].colour);
      const [px, py] = [u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true)];
      ctx.beginPath();
      if (known(point.low) && known(point.high)) {
        ctx.moveTo(px, u.valToPos(point.low, "y", true));
        ctx.lineTo(px, u.valToPos(point.high, "y", true));
      }
      if (known(point.left) && known(point.right)) {
        ctx.moveTo(u.valToPos(point.left, "x", true), py);
        ctx.lineTo(u.valToPos(point.right, "x", true), py);
      }
      ctx.stroke();
    }
    if (known(line)) {
      ctx.globalAlpha = 1;
      ctx.strokeStyle = colour("--quiet");
      ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      const at = u.valToPos(line, "y", true);
      ctx.beginPath();
      ctx.moveTo(u.bbox.left, at);
      ctx.lineTo(u.bbox.left + u.bbox.width, at);
      ctx.stroke();
    }
    ctx.restore();
  };
  return new uPlot({
    width, height, series: drawn, legend: { show: false },
    bands: bands.map(({ pair, paint }) => ({ series: pair, fill: () => `${colour(paint)}2e` })),
    scales: { x: scale(x, ["left", "x", "right"]), y: scale(y, ["low", "y", "high"]) },
    axes: [axis(x, "x"), axis(y, "y")],
    cursor: { drag: { x: Boolean(brush), y: Boolean(brush), setScale: false, uni: 20 }, points: { size: 9 } },
    hooks: {
      draw: [errors],
      setCursor: [(u) => onPoint(u.cursor.idx === null || u.cursor.left < 0 ? null : nearest(u, points))],
      setSelect: [(u) => brush && onBrush(u.select.width > 2 && u.select.height > 2 ? {
        x: [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")],
        y: [u.posToVal(u.select.top + u.select.height, "y"), u.posToVal(u.select.top, "y")],
      } : null)],
    },
  }, columns, host);
}

function nearest(u, points) {
  let best = null;
  let least = 40;
  for (const point of points) {
    const away = Math.hypot(u.valToPos(point.x, "x") - u.cursor.left, u.valToPos(point.y, "y") - u.cursor.top);
    if (away < least) [best, least] = [point, away];
  }
  return best;
}

// title: what it shows; summary: the same in words for those who do not see it.
export function Plot({ title, summary, height = 300, brush, onBrush, ...rest }) {
  const host = useRef();
  const [point, setPoint] = useState(null);
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const changed = () => setTheme((before) => before + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", changed);
    addEventListener("forerun-theme", changed);
    return () => {
      dark.removeEventListener("change", changed);
      removeEventListener("forerun-theme", changed);
    };
  }, []);
  useEffect(() => {
    const place = host.current;
    const plot = build(place, { brush, onBrush, onPoint: setPoint, ...rest }, place.clientWidth, height);
    const watch = new ResizeObserver(() => place.clientWidth && plot.setSize({ width: place.clientWidth, height }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [JSON.stringify(rest.series), rest.x.label, rest.y.label, rest.x.log, rest.y.log, theme, brush]);
  const { x, y, series } = rest;
  const rows = series.flatMap((one) => one.points.map((p) => ({ ...p, series: one.label })));
  const columns = [
    { name: "series", label: "series" },
    { name: "x", label: x.label, figure: true, show: (row) => x.format(row.x) },
    { name: "y", label: y.label, figure: true, show: (row) => y.format(row.y) },
    { name: "low", label: "5–95 %", figure: true, show: (row) => (known(row.low) ? `${y.format(row.low)} to ${y.format(row.high)}` : "") },
    { name: "words", label: "what" },
  ];
  return (
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div class="legend" aria-hidden="true">
        {series.map((one) => (
          <span key={one.label}><i class={one.hollow ? "hollow" : ""} style={{ "--of": `var(${one.colour})` }} />{one.label}</span>
        ))}
      </div>
      <div ref={host} role="img" aria-label={summary} />
      <p class="readout" aria-hidden="true">
        {point ? `${series[point.index].label}: ${x.format(point.x)}, ${y.format(point.y)}${point.words ? ` · ${point.words}` : ""}`
          : brush ? "Drag over the plot to filter the table; click to clear." : "\u00a0"}
      </p>
      <details class="words">
        <summary>The figures of this plot</summary>
        <Table caption={title} columns={columns} rows={rows} />
      </details>
    </figure>
  );
}
