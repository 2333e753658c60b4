// One plan in detail: which one, its memory (Figure 5) and its messages (Figure 6).

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
const drawMemory = drawn(memory, (width) => {
  const row = chosen();
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

const matrix = byId("traffic");
function drawTraffic() {
  const row = chosen();
  const side = ["measured", "predicted"].find((name) => row && row[name] && row[name].traffic);
  const words = byId("traffic-words");
  words.textContent = "Payload from rank to rank in one step.";
  if (!side) return empty(matrix, "No rank sends anything, or the messages of this plan are not known.");
  const { ranks, shown, cells } = row[side].traffic;
  const measured = row.measured ? row.measured.sent : [];
  const who = side === "predicted" ? "as the Program says" : "measured";
  words.textContent += ` Rows send, columns receive; ${who}. Collectives are counted as rings.`;
  if (shown < ranks) words.textContent += ` The first ${shown} of ${ranks} ranks.`;
  const most = Math.max(...cells.map(([, , size]) => size), 1);
  const found = new Map(cells.map(([source, to, size]) => [source * shown + to, size]));
  const numbers = [...Array(shown).keys()];
  const head = html("tr", {}, ...["from \\ to", ...numbers].map((to) => html("th", { scope: "col" }, String(to))));
  const sums = ["sent, predicted", "sent, measured"];
  head.append(...sums.map((name) => html("th", { scope: "col", class: "total" }, name)));
  const lines = numbers.map((source) => {
    const line = html("tr", {}, html("th", { scope: "row" }, String(source)));
    for (let to = 0; to < shown; to += 1) {
      const size = found.get(source * shown + to) || 0;
      const cell = html("td", { class: "cell" }, size ? bytes(size) : "");
      cell.style.setProperty("--heat", size ? 0.15 + (0.85 * size) / most : source === to ? 0 : 0.03);
      line.append(cell);
    }
    const predicted = row.predicted ? row.predicted.sent[source] : undefined;
    const totals = [predicted, measured[source]].map((size) => (size === undefined ? "–" : bytes(size)));
    line.append(...totals.map((text) => html("td", { class: "total" }, text)));
    return line;
  });
  const parts = [html("thead", {}, head), html("tbody", {}, ...lines)];
  matrix.replaceChildren(html("table", { "aria-label": "Bytes from rank to rank" }, ...parts));
  return undefined;
}
listeners.push(() => drawMemory(), drawTraffic);
drawTraffic();
