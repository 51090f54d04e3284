"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const form = document.querySelector(".controls");

// The view, shared by all charts.
const state = {
  x: data.x,
  y: Object.keys(data.measures)[0],
  log: { ...data.log }, // each measure keeps its own scale
  hidden: new Set(),
  printing: false,
};

// ---- curves -----------------------------------------------------------------------------------

function colourOf(curve) {
  return curve.colours[dark.matches && !state.printing ? 1 : 0];
}

function showValue(value) {
  return state.y === "test_accuracy" ? `${(100 * value).toFixed(2)}%` : value.toPrecision(4);
}

function hoverText(curve, values, i) {
  if (values.y[i] === null) return "";
  const seeds = `${showValue(values.low[i])} – ${showValue(values.high[i])} over ${curve.seeds} seeds`;
  return [
    `<b>${curve.name}</b>`,
    `${data.measures[state.y]} ${showValue(values.y[i])}`,
    ...(curve.seeds > 1 ? [seeds] : []),
    curve.notes[i],
  ].join("<br>");
}

function tracesOf(curve, size) {
  const values = curve.y[state.y];
  if (!values) return [];
  const x = curve.x[state.x].map((value) => value / size);
  const visible = !state.hidden.has(curve.label);
  const colour = colourOf(curve);
  const traces = [];
  if (curve.seeds > 1) {
    const there = [...x.keys()].filter((i) => values.low[i] !== null);
    const back = [...there].reverse();
    traces.push({
      x: [...there, ...back].map((i) => x[i]),
      y: [...there.map((i) => values.high[i]), ...back.map((i) => values.low[i])],
      mode: "lines",
      line: { width: 0 },
      fill: "toself",
      fillcolor: colour + "26",
      hoverinfo: "skip",
      visible,
    });
  }
  // A few markers per curve, staggered: curves may coincide.
  const every = Math.ceil(x.length / 4);
  const offset = (3 + 2 * curve.number) % every;
  traces.push({
    name: curve.name,
    x,
    y: values.y,
    mode: "lines+markers",
    line: { color: colour, width: curve.width, dash: curve.dash },
    marker: {
      color: colour,
      symbol: curve.symbol,
      opacity: 1,
      size: x.map((_, i) => (i % every === offset ? 8 : 0)),
      line: { width: 0 },
    },
    text: x.map((_, i) => hoverText(curve, values, i)),
    hovertemplate: "%{text}<extra></extra>",
    hoverlabel: { bordercolor: colour },
    visible,
  });
  return traces;
}

function layoutOf(unit, empty) {
  const css = getComputedStyle(document.documentElement);
  const [ink, soft, line, paper] = ["ink", "soft", "line", "paper"].map((name) => css.getPropertyValue(`--${name}`));
  const axis = { gridcolor: line, linecolor: line, zeroline: false, automargin: true, tickfont: { color: soft } };
  const titled = (text) => ({ text, standoff: 12, font: { color: soft, size: 13 } });
  return {
    showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css.fontFamily, color: ink, size: 12 },
    margin: { l: 48, r: 8, t: 28, b: 44 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
    hovermode: "closest",
    hoverdistance: 40,
    hoverlabel: { bgcolor: paper, font: { family: css.fontFamily, color: ink, size: 13 }, align: "left" },
    dragmode: touch.matches ? false : "zoom", // a finger scrolls the page
    uirevision: [state.x, state.y, state.log[state.y]].join(), // hiding a curve keeps the zoom
    xaxis: { ...axis, title: titled(unit.label), rangemode: "tozero" },
    yaxis: {
      ...axis,
      nticks: 6,
      title: titled(data.measures[state.y]),
      type: state.log[state.y] ? "log" : "linear",
      tickformat: state.y === "test_accuracy" ? ".0%" : "~g",
    },
    annotations: empty
      ? [{ text: `no ${data.measures[state.y]} in these runs`, showarrow: false, font: { color: soft } }]
      : [],
  };
}

const plotConfig = {
  responsive: true,
  displaylogo: false,
  displayModeBar: touch.matches ? false : "hover",
  modeBarButtons: [["toImage", "pan2d", "zoom2d", "resetScale2d"]],
};

function draw() {
  data.charts.forEach((chart, number) => {
    const place = document.getElementById(`plot-${number}`);
    const unit = chart.units[state.x];
    const traces = chart.curves.flatMap((curve) => tracesOf(curve, unit.size));
    Plotly.react(place, traces, layoutOf(unit, traces.length === 0), plotConfig);
    drawLegend(place.parentElement.querySelector(".legend"), chart);
  });
  form.elements.scale.value = state.log[state.y] ? "log" : "linear";
}

// ---- the legend: buttons, for keyboard users ---------------------------------------------------

const shapes = {
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
  square: "M-3.5 -3.5h7v7h-7z",
  "triangle-up": "M0 -4.5L4.5 3.5H-4.5z",
  "triangle-down": "M0 4.5L4.5 -3.5H-4.5z",
  diamond: "M0 -5L5 0L0 5L-5 0z",
  cross: "M-1.6 -4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
  x: "M-4.4 -2.2L-2.2 -4.4L0 -2.2L2.2 -4.4L4.4 -2.2L2.2 0L4.4 2.2L2.2 4.4L0 2.2L-2.2 4.4L-4.4 2.2L-2.2 0z",
  star: "M0 -5.5L1.4 -1.9L5.2 -1.7L2.2 0.7L3.2 4.4L0 2.3L-3.2 4.4L-2.2 0.7L-5.2 -1.7L-1.4 -1.9z",
};

function drawLegend(legend, chart) {
  chart.curves.forEach((curve, i) => {
    const button = legend.children[i] ?? legend.appendChild(newEntry(curve));
    button.setAttribute("aria-pressed", String(!state.hidden.has(curve.label)));
    button.querySelector("svg").style.color = colourOf(curve);
  });
}

function newEntry(curve) {
  const button = document.createElement("button");
  button.type = "button";
  const dash = curve.dash === "solid" ? "none" : curve.dash;
  button.innerHTML = `<svg width="38" height="14" viewBox="-19 -7 38 14" aria-hidden="true" fill="currentColor">
    <path d="M-19 0H19" stroke="currentColor" stroke-width="${curve.width}" stroke-dasharray="${dash}"/>
    <path d="${shapes[curve.symbol]}"/></svg>`;
  button.append(curve.label);
  button.addEventListener("click", () => {
    if (!state.hidden.delete(curve.label)) state.hidden.add(curve.label);
    draw();
  });
  return button;
}

// ---- sortable tables ----------------------------------------------------------------------------

function compare(a, b, down) {
  const [left, right] = [a, b].map((cell) => cell.dataset.value ?? (cell.textContent === "–" ? null : cell.textContent));
  if (left === null || right === null) return (left === null) - (right === null); // unknown values go last
  const order = a.dataset.value ? left - right : left.localeCompare(right, undefined, { numeric: true });
  return down ? -order : order;
}

function sortBy(heading) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = heading.closest("table").tBodies[0];
  const i = heading.cellIndex;
  body.append(...[...body.rows].sort((a, b) => compare(a.cells[i], b.cells[i], down)));
}

for (const button of document.querySelectorAll(".results thead button")) {
  button.addEventListener("click", () => sortBy(button.parentElement));
}

// ---- controls -----------------------------------------------------------------------------------

form.addEventListener("change", ({ target }) => {
  if (target.name === "scale") state.log[state.y] = target.value === "log";
  else state[target.name] = target.value;
  draw();
});

document.querySelector(".copy")?.addEventListener("click", async ({ target }) => {
  const text = target.previousElementSibling;
  try {
    await navigator.clipboard.writeText(text.textContent);
    target.textContent = "Copied";
    setTimeout(() => (target.textContent = "Copy"), 1500);
  } catch {
    getSelection().selectAllChildren(text); // no permission: select it, so that one key press copies it
  }
});

dark.addEventListener("change", draw);
addEventListener("beforeprint", () => {
  state.printing = true;
  for (const details of document.querySelectorAll("details")) details.open = true;
  draw();
});
addEventListener("afterprint", () => {
  state.printing = false;
  draw();
});

form.hidden = false;
form.reset(); // browsers may restore earlier choices
draw();
