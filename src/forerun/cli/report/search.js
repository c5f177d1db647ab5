/* Draws what a search minimises, its time and its money against its trials. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const trials = data.runs.map((run, i) => i + 1);
  const charts = [];

  function side(text, position, from0) {
    const made = axis(text, undefined, { position, beginAtZero: from0 });
    if (position !== "bottom") made.ticks.callback = (value) => String(+value.toPrecision(3));
    made.grid.drawOnChartArea = position !== "right";
    return made;
  }

  function draw(id, datasets, scales, note) {
    charts.push(new Chart(document.getElementById(id), {
      data: { labels: trials, datasets },
      options: {
        animation: false, maintainAspectRatio: false,
        scales: { x: { ...side("trial", "bottom"), offset: true }, ...scales },
        plugins: {
          legend: { labels: { color: colour("--ink"), boxWidth: 12,
            filter: (item) => !item.text.startsWith("band of") } },
          tooltip: { callbacks: { afterTitle: (items) => data.runs[items[0].dataIndex].words, footer: note } },
        },
      },
    }));
  }

  function drawAll() {
    while (charts.length) charts.pop().destroy();
    const line = (label, name, more) => ({ type: "line", label, data: data.runs.map((run) => run[name]),
      pointRadius: 0, borderWidth: 2, stepped: "before", ...more });
    const dots = (label, name, more) => ({ type: "line", label, showLine: false, pointRadius: 5,
      data: data.runs.map((run) => run[name]), backgroundColor: data.runs.map((run) =>
        colour(run.value !== null ? "--accent" : "--quiet")), borderColor: colour("--accent"), ...more });
    draw("goal", [
      dots(`${data.goal} of a ${data.quantity}`, "value"),
      line("best so far", "best", { borderColor: colour("--best"), backgroundColor: colour("--best") }),
      line("band of the best, from", "", { borderWidth: 0, data: data.runs.map((run) => run.band?.[0]) }),
      line("band of the best, to", "", { borderWidth: 0, data: data.runs.map((run) => run.band?.[1]),
        fill: "-1", backgroundColor: colour("--best") + "33" }),
    ], { y: side(data.unit, "left", true) }, (items) => data.runs[items[0].dataIndex].why);
    const scales = { y: side(`seconds of a ${data.quantity}`, "left", true) };
    const sets = [dots(`time of a ${data.quantity}`, "seconds")];
    if (data.runs.some((run) => run.dollars > 0)) {
      scales.money = side("dollars spent", "right", true);
      sets.push(line("dollars spent", "dollars",
        { yAxisID: "money", borderColor: colour("--best"), backgroundColor: colour("--best") }));
    }
    draw("spent", sets, scales, (items) => data.runs[items[0].dataIndex].took);
    document.body.dataset.drawn = String(trials.length);
  }

  if (trials.length) {
    drawAll();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  }
})();
