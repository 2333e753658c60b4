// One plan in detail: which one, and its memory (Figure 5).

const chooser = byId("plan");
const listeners = [];
const detailed = ROWS.map((row, place) => ({ row, place })).filter(({ row }) => row.predicted || row.measured);
for (const { row, place } of detailed) chooser.append(html("option", { value: place }, row.plan));
// The fastest that ran comes first.
const took = ({ row }) => (row.measured ? row.measured.step : row.predicted.step + 1e9);
if (detailed.length) chooser.value = detailed.reduce((one, other) => (took(other) < took(one) ? other : one)).place;
const chosen = () => ROWS[Number(chooser.value)];
chooser.addEventListener("change", () => listeners.forEach((listener) => listener()));

const memory = byId("memory");
const memoryLegend = byId("memory-legend");
const ranks = byId("rank");
const USES = JSON.parse(document.getElementById("data").textContent).uses;
const LOOKS = { parameters: 0, optimizer: 2, buckets: 4, gradients: 5, activations: 6, messages: 1, workspace: 7 };

/** The ranks whose memory is known moment by moment; the fullest comes first. */
function chooseRank() {
  const { uses, memory: peaks } = (chosen() || {}).predicted || { uses: [], memory: [] };
  ranks.replaceChildren(...uses.map((_, rank) => html("option", { value: rank }, String(rank))));
  ranks.parentElement.hidden = uses.length < 2;
  if (uses.length) ranks.value = uses.reduce((best, _, rank) => (peaks[rank] > peaks[best] ? rank : best), 0);
}

/** A line that keeps each value until the next moment. */
const staircase = (points) => points.flatMap(([x, y], i) => (i ? [[x, points[i - 1][1]], [x, y]] : [[x, y]]));

/** Predicted bytes of one rank stacked by what they are for; what the allocator did over it. */
function memoryByUse(row, rank, width) {
  const series = row.predicted.over[rank];
  const seen = row.measured && row.measured.over[rank] ? row.measured.over[rank] : [];
  const peak = row.measured ? row.measured.memory[rank] : undefined;
  const columns = row.predicted.uses[rank].map((use) => (Array.isArray(use) ? use : series.map(() => use)));
  const moments = [...series, ...seen].map(([at]) => at);
  const x = { low: Math.min(...moments), high: Math.max(...moments), say: seconds, title: "seconds" };
  x.ticks = ticks(x.low, x.high, width / 110);
  const highest = Math.max(...series.map(([, size]) => size), peak || 0);
  const y = axis([0, highest], bytes, `live bytes of rank ${rank}`, { base: 1024 });
  const plot = axes(memory, width, 300, x, y, `Memory of rank ${rank} over time`);
  let below = series.map(() => 0);
  const shown = [];
  USES.forEach((name, k) => {
    const above = below.map((size, i) => size + columns[k][i]);
    const most = Math.max(...columns[k]);
    if (most > 0) {
      const side = (sizes) => staircase(sizes.map((size, i) => [plot.x(series[i][0]), plot.y(size)]));
      const words = `${name}, at most ${bytes(most)}`;
      const look = { class: `area p${LOOKS[name]}`, role: "img", tabindex: "0", "aria-label": words };
      const area = svg("path", { d: `${path([...side(above), ...side(below).reverse()])}Z`, ...look });
      plot.picture.append(area);
      hint(memory, area, words, plot.x(series[0][0]) + 40, plot.y(above[0]));
      shown.push(html("span", {}, html("i", { class: `p${LOOKS[name]}` }), name));
    }
    below = above;
  });
  if (seen.length) {
    const steps = staircase(seen.map(([at, size]) => [plot.x(at), plot.y(size)]));
    plot.picture.append(svg("path", { class: "seen", d: path(steps), role: "img", "aria-label": "measured" }));
  }
  if (peak) {
    const at = { x1: plot.inner.left, x2: plot.inner.right, y1: plot.y(peak), y2: plot.y(peak) };
    const look = { class: "peak", role: "img", "aria-label": `measured peak ${bytes(peak)}` };
    plot.picture.append(svg("line", { ...at, ...look }));
  }
  memoryLegend.replaceChildren(...shown);
  const most = Math.max(...series.map(([, size]) => size));
  const measured = peak ? `measured peak ${bytes(peak)} (dashed)` : "not measured";
  const also = seen.length ? "; the line is what the allocator did in a run of its own, on the clock of this one" : "";
  const what = `Live bytes of rank ${rank} over the steps of Figure 4, predicted, by what they are for`;
  byId("memory-words").textContent = `${what}: peak ${bytes(most)}, ${measured}${also}.`;
}

const drawMemory = drawn(memory, (width) => {
  const row = chosen();
  const rank = Number(ranks.value);
  memoryLegend.replaceChildren();
  if (row && row.predicted && row.predicted.uses[rank]) return memoryByUse(row, rank, width);
  const sides = ["predicted", "measured"].filter((side) => row && row[side]);
  const over = sides.flatMap((side) => row[side].over.map((series, rank) => ({ side, rank, series })));
  if (over.length) return memoryOverTime(over, width);
  const peaks = sides.flatMap((side) => row[side].memory.map((size, rank) => ({ side, rank, size })));
  byId("memory-words").textContent = "Peak of live bytes on each rank: predicted (outline) and measured (filled).";
  if (!peaks.length) return empty(memory, "No memory is known of this plan.");
  return memoryPeaks(peaks, width);
});

function memoryOverTime(over, width) {
  const points = over.flatMap(({ series }) => series);
  const measured = over.some(({ side }) => side === "measured");
  const also = measured ? "and measured (dashes)" : "(lines); of the measured run only peaks are known, in Table 1";
  byId("memory-words").textContent = `Live bytes on each rank over the steps of Figure 4, predicted ${also}.`;
  const moments = points.map(([at]) => at);
  const x = { low: Math.min(...moments), high: Math.max(...moments), say: seconds, title: "seconds" };
  x.ticks = ticks(x.low, x.high, width / 110);
  const y = axis(points.map(([, size]) => size), bytes, "live bytes", { base: 1024 });
  const plot = axes(memory, width, 300, x, { ...y, log: false }, "Memory over time");
  for (const { side, rank, series } of over) {
    const before = (i) => series[Math.max(i - 1, 0)][1];
    const steps = series.flatMap(([at, size], i) => [before(i), size].map((y) => [plot.x(at), plot.y(y)]));
    const words = `rank ${rank}, ${side}, at most ${bytes(Math.max(...series.map(([, size]) => size)))}`;
    const dashes = side === "measured" ? "3 3" : "none";
    const look = { class: `line p${rank % 10}`, "stroke-dasharray": dashes, role: "img", "aria-label": words };
    plot.picture.append(svg("path", { d: path(steps), ...look }));
  }
}

function memoryPeaks(peaks, width) {
  const ranks = Math.max(...peaks.map(({ rank }) => rank)) + 1;
  const y = axis([0, ...peaks.map(({ size }) => size)], bytes, "peak of live bytes", { base: 1024 });
  const every = Math.ceil(ranks / (width / 60));
  const named = [...Array(ranks).keys()].filter((rank) => rank % every === 0);
  const x = { low: -0.5, high: ranks - 0.5, ticks: named, say: String, title: "rank" };
  const plot = axes(memory, width, 300, x, y, "Peak memory of each rank");
  const wide = clamp((plot.x(1) - plot.x(0)) * 0.32, 1.5, 30);
  for (const { side, rank, size } of peaks) {
    const left = plot.x(rank) + (side === "predicted" ? -wide - 1 : 1);
    const box = { x: left, y: plot.y(size), width: wide, height: Math.max(plot.y(0) - plot.y(size), 0) };
    const look = { class: `p0 ${side === "predicted" ? "ring" : "full"}`, role: "img", tabindex: "0" };
    const bar = svg("rect", { ...box, ...look, "aria-label": `rank ${rank}, ${side}: ${bytes(size)}` });
    plot.picture.append(bar);
    hint(memory, bar, `rank ${rank}, ${side}\n${bytes(size)}`, left, plot.y(size));
  }
}

ranks.addEventListener("change", () => drawMemory());
listeners.push(() => { chooseRank(); drawMemory(); });
chooseRank();
drawMemory();
