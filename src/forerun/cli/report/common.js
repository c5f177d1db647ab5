/* What the charts of all pages share: colours of the page, axes, and error bars. */
"use strict";
const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const palette = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1",
  "#ff9da7", "#9c755f", "#bab0ac"];

function axis(text, type, more) {
  return {
    ...(type && { type }), title: { display: Boolean(text), text, color: colour("--ink") },
    ticks: { color: colour("--quiet"), maxTicksLimit: 7, maxRotation: 45, autoSkip: true },
    grid: { color: colour("--line") }, ...more,
  };
}

function spread(values) { // a logarithmic axis over less than a decade labels every line
  const known = values.filter((value) => value > 0);
  return Math.max(...known) < 5 * Math.min(...known) ? "linear" : "logarithmic";
}

function reach(values) { // an axis on which nothing that is drawn leaves the plot
  const known = values.filter((value) => value != null);
  return { suggestedMin: Math.min(...known), suggestedMax: Math.max(...known) };
}

/* Draws the 5-95 % bands of a dataset's points: `bands` are [x low, x high, y low, y high], null where unknown. */
const errorBars = {
  id: "errorBars",
  afterDatasetsDraw(chart) {
    const { ctx, scales } = chart;
    chart.data.datasets.forEach((set, number) => {
      if (!set.bands) return;
      chart.getDatasetMeta(number).data.forEach((point, i) => {
        const [left, right, low, high] = set.bands[i] || [];
        ctx.save();
        ctx.strokeStyle = set.bandColour || colour("--quiet");
        ctx.lineWidth = 1.5;
        ctx.beginPath();
        if (left != null && right != null) {
          const [a, b] = [scales.x.getPixelForValue(left), scales.x.getPixelForValue(right)];
          ctx.moveTo(a, point.y - 4); ctx.lineTo(a, point.y + 4);
          ctx.moveTo(a, point.y); ctx.lineTo(b, point.y);
          ctx.moveTo(b, point.y - 4); ctx.lineTo(b, point.y + 4);
        }
        if (low != null && high != null) {
          const [a, b] = [scales.y.getPixelForValue(low), scales.y.getPixelForValue(high)];
          ctx.moveTo(point.x - 4, a); ctx.lineTo(point.x + 4, a);
          ctx.moveTo(point.x, a); ctx.lineTo(point.x, b);
          ctx.moveTo(point.x - 4, b); ctx.lineTo(point.x + 4, b);
        }
        ctx.stroke();
        ctx.restore();
      });
    });
  },
};
