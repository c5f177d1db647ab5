/* Draws the charts of an answer: bars that lie, and lines and points with their bands. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  const write = (value) => Number(value.toPrecision(3)).toLocaleString("en");

  function bars(chart) {
    const one = chart.series[0];
    const spans = one.y.map((end, i) => [one.start[i] || 0, end]);
    return {
      type: "bar",
      data: { labels: one.x, datasets: [{
        data: spans, backgroundColor: one.x.map((name, i) =>
          (name === "all" ? colour("--quiet") : palette[i % palette.length])),
        bands: one.low.length ? one.low.map((low, i) => [low, one.high[i], null, null]) : null,
        bandColour: colour("--ink"),
      }] },
      options: {
        indexAxis: "y",
        scales: {
          x: axis(chart.x, "linear", { beginAtZero: true, suggestedMax: Math.max(0, ...one.high) }),
          y: { ticks: { color: colour("--ink"), autoSkip: false }, grid: { display: false } },
        },
        plugins: { legend: { display: false }, tooltip: { callbacks: {
          label: (item) => write(item.raw[1] - item.raw[0]) } } },
      },
    };
  }

  function lines(chart) {
    const sets = [];
    chart.series.forEach((one, number) => {
      const ink = palette[number % palette.length];
      const at = (values) => one.x.map((x, i) => ({ x, y: values[i] }));
      const points = one.kind === "points";
      const plain = { pointRadius: 0, borderColor: ink, backgroundColor: ink, showLine: true, label: one.name,
        pointStyle: points ? "circle" : "line" };
      if (!points && one.low.length) {
        sets.push({ ...plain, label: "", data: at(one.low), borderWidth: 0 });
        sets.push({ ...plain, label: "", data: at(one.high), borderWidth: 0, fill: "-1", backgroundColor: ink + "40" });
      }
      const bands = one.low.length || one.x_low.length ? one.x.map((x, i) =>
        [one.x_low[i], one.x_high[i], one.low[i], one.high[i]]) : null;
      sets.push({ ...plain, data: at(one.y), borderDash: one.kind === "dashed" ? [6, 4] : [],
        borderWidth: 2, ...(points && { showLine: false, pointRadius: 4, bands, bandColour: ink + "90" }) });
    });
    const type = (name) => (chart.log.includes(name) ? "logarithmic" : "linear");
    const all = (...names) => reach(chart.series.flatMap((one) => names.flatMap((name) => one[name])));
    const x = axis(chart.x, type("x"), all("x", "x_low", "x_high"));
    if (chart.ticks.length) {
      x.afterBuildTicks = (scale) => { scale.ticks = chart.ticks.map((value) => ({ value })); };
      x.ticks = { ...x.ticks, autoSkip: false, callback: (value) => String(value) };
    }
    return {
      type: "scatter", data: { datasets: sets },
      options: {
        scales: { x, y: axis(chart.y, type("y"), all("y", "low", "high")) },
        plugins: {
          legend: { display: chart.series.length > 1,
            labels: { color: colour("--ink"), usePointStyle: true, boxHeight: 5, boxWidth: 20, filter: (item) => item.text } },
          tooltip: { filter: (item) => item.dataset.label, callbacks: {
            label: (item) => `${item.dataset.label}: ${write(item.raw.x)}, ${write(item.raw.y)}` } },
        },
      },
    };
  }

  function drawAll() {
    while (charts.length) charts.pop().destroy();
    data.charts.forEach((chart, i) => {
      const made = chart.series[0].kind === "bars" ? bars(chart) : lines(chart);
      Object.assign(made.options, { animation: false, maintainAspectRatio: false });
      charts.push(new Chart(document.getElementById("chart-" + i), { ...made, plugins: [errorBars] }));
    });
    document.body.dataset.drawn = String(charts.length);
  }

  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
