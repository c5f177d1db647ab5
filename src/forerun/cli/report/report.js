/* Draws the front, and the step and memory of the option that is chosen by click or button. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const priced = data.options
    .map((option, index) => ({ x: option.hours, y: option.dollars, index, bands: option.bands }))
    .filter((point) => point.x !== null && point.y !== null);
  const charts = {};
  let selected = data.best >= 0 ? data.best : 0;

  function edges(first, name) { // all that is drawn along an axis, so that no band leaves the plot
    return priced.flatMap((point) => [point[name], ...point.bands.slice(first, first + 2)]);
  }

  function drawFront() {
    const size = (context) => (priced[context.dataIndex]?.index === selected ? 9 : 5);
    const paint = (context) =>
      colour(priced[context.dataIndex]?.index === data.best ? "--best" : "--accent");
    charts.front = new Chart(document.getElementById("front"), {
      type: "scatter",
      data: { datasets: [{
        data: priced, showLine: data.best >= 0, borderColor: colour("--line"), borderWidth: 1,
        pointRadius: size, pointHoverRadius: 9, pointBackgroundColor: paint,
        pointBorderColor: colour("--ground"), bands: priced.map((point) => point.bands),
      }] },
      plugins: [errorBars],
      options: {
        animation: false, maintainAspectRatio: false,
        scales: {
          x: axis("wall time, hours", spread(edges(0, "x")), reach(edges(0, "x"))),
          y: axis("cost, dollars", spread(edges(2, "y")), reach(edges(2, "y"))),
        },
        plugins: {
          legend: { display: false },
          tooltip: { callbacks: {
            title: (items) => data.options[items[0].raw.index].label,
            label: (item) => {
              const option = data.options[item.raw.index];
              return [`${option.wall}, ${option.cost}`, option.plan];
            },
          } },
        },
        onClick: (event, elements) => {
          if (elements.length) select(priced[elements[0].index].index);
        },
      },
    });
  }

  function drawStep(option) {
    let before = 0;
    const spans = option.parts.map(([, value]) => [before, (before += value)]);
    const most = before;
    const rows = option.parts.map(([name]) => name).concat("all");
    return bars("step", rows, [{ data: spans.concat([[0, most]]),
      backgroundColor: rows.map((name, i) =>
        (name === "all" ? colour("--quiet") : palette[i % palette.length])) }],
      axis("milliseconds of the median step", "linear"), (raw) => `${(raw[1] - raw[0]).toPrecision(3)} ms`);
  }

  function drawMemory(option) {
    const sets = option.memory_parts.map(([name, value], i) => ({
      label: name, data: [value, null], backgroundColor: palette[i % palette.length],
    }));
    sets.push({ label: "device", data: [null, option.device_gb], backgroundColor: colour("--line") });
    const x = axis("gigabytes of one device", "linear");
    return bars("memory", ["the job", "the device"], sets, x, (raw) => `${raw.toPrecision(3)} GB`, true);
  }

  function bars(id, labels, datasets, x, write, stacked) {
    if (charts[id]) charts[id].destroy();
    charts[id] = new Chart(document.getElementById(id), {
      type: "bar",
      data: { labels, datasets },
      options: {
        indexAxis: "y", animation: false, maintainAspectRatio: false,
        scales: {
          x: { ...x, stacked: Boolean(stacked), beginAtZero: true },
          y: { stacked: Boolean(stacked), ticks: { color: colour("--ink"), autoSkip: false },
            grid: { display: false } },
        },
        plugins: {
          legend: { display: Boolean(stacked), labels: { color: colour("--ink"), boxWidth: 12 } },
          tooltip: { callbacks: { label: (item) =>
            `${item.dataset.label || item.label}: ${write(item.raw)}` } },
        },
      },
    });
  }

  function select(index) {
    selected = index;
    const option = data.options[index];
    for (const name of ["cluster", "plan", "wall", "wall_range", "run", "mfu_words",
      "speed_words", "total_words", "goodput_words", "cost", "cost_range", "memory",
      "fits", "limits", "source", "nearer", "market", "misses", "warnings", "settings", "price"]) {
      const place = document.getElementById("chosen-" + name);
      if (place) place.textContent = option[name];
    }
    document.querySelectorAll("tr[data-index]").forEach((row) =>
      row.setAttribute("aria-selected", String(Number(row.dataset.index) === index)));
    drawStep(option);
    drawMemory(option);
    if (charts.front) charts.front.update("none");
    document.body.dataset.selected = String(index);
  }

  function drawAll() {
    for (const name of Object.keys(charts)) { charts[name].destroy(); delete charts[name]; }
    drawFront();
    select(selected);
    document.body.dataset.drawn = String(priced.length);
  }

  document.querySelectorAll("button[data-index]").forEach((button) =>
    button.addEventListener("click", () => select(Number(button.dataset.index))));
  if (data.options.length) {
    drawAll();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  }
  window.report = { charts, select, priced };
})();
