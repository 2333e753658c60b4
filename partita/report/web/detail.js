// One plan in detail: which one, its memory (Figure 5) and its messages (Figure 6).

const chooser = byId("plan");
const listeners = [];
const detailed = ROWS.map((row, place) => ({ row, place })).filter(({ row }) => row.predicted || row.measured);
for (const { row, place } of detailed) chooser.append(html("option", { value: place }, row.plan));
const chosen = () => ROWS[Number(chooser.value)];
chooser.addEventListener("change", () => listeners.forEach((listener) => listener()));

const memory = byId("memory");
const drawMemory = drawn(memory, (width) => {
  const row = chosen();
  const over = ["predicted", "measured"].flatMap((side) => (row && row[side] ? row[side].over.map((series, rank) => ({ side, rank, series })) : []));
  if (over.length) return memoryOverTime(over, width);
  const peaks = ["predicted", "measured"].flatMap((side) => (row && row[side] ? row[side].memory.map((size, rank) => ({ side, rank, size })) : []));
  byId("memory-words").textContent = "Peak of live bytes on each rank: predicted (outline) and measured (filled).";
  if (!peaks.length) return empty(memory, "No memory is known of this plan.");
  return memoryPeaks(peaks, width);
});

function memoryOverTime(over, width) {
  const points = over.flatMap(({ series }) => series);
  const measured = over.some(({ side }) => side === "measured");
  byId("memory-words").textContent = `Live bytes on each rank over the steps of Figure 4, predicted (lines)${measured ? " and measured (dashes)" : "; of the measured run only peaks are known, in Table 1"}.`;
  const moments = points.map(([at]) => at);
  const x = { low: Math.min(...moments), high: Math.max(...moments), say: seconds, title: "seconds" };
  x.ticks = ticks(x.low, x.high, width / 110);
  const y = axis(points.map(([, size]) => size), bytes, "live bytes", { base: 1024 });
  const plot = axes(memory, width, 300, x, { ...y, log: false }, "Memory over time");
  for (const { side, rank, series } of over) {
    const steps = series.flatMap(([at, size], i) => (i ? [[plot.x(at), plot.y(series[i - 1][1])], [plot.x(at), plot.y(size)]] : [[plot.x(at), plot.y(size)]]));
    const most = bytes(Math.max(...series.map(([, size]) => size)));
    plot.picture.append(svg("path", { class: `line p${rank % 10}`, d: path(steps), role: "img", "stroke-dasharray": side === "measured" ? "3 3" : "none", "aria-label": `rank ${rank}, ${side}, at most ${most}` }));
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
    const style = side === "predicted" ? "ring" : "full";
    const bar = svg("rect", { class: `${style} p0`, x: left, y: plot.y(size), width: wide, height: Math.max(plot.y(0) - plot.y(size), 0), role: "img", tabindex: "0", "aria-label": `rank ${rank}, ${side}: ${bytes(size)}` });
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
  words.textContent += ` Rows send, columns receive; ${side === "predicted" ? "as the Program says" : "measured"}. Collectives are counted as rings.${shown < ranks ? ` The first ${shown} of ${ranks} ranks.` : ""}`;
  const most = Math.max(...cells.map(([, , size]) => size), 1);
  const found = new Map(cells.map(([source, to, size]) => [source * shown + to, size]));
  const head = html("tr", {}, html("th", { scope: "col" }, "from \\ to"), ...[...Array(shown).keys()].map((to) => html("th", { scope: "col" }, String(to))));
  head.append(html("th", { scope: "col", class: "total" }, "sent, predicted"), html("th", { scope: "col", class: "total" }, "sent, measured"));
  const lines = [...Array(shown).keys()].map((source) => {
    const line = html("tr", {}, html("th", { scope: "row" }, String(source)));
    for (let to = 0; to < shown; to += 1) {
      const size = found.get(source * shown + to) || 0;
      const cell = html("td", { class: "cell" }, size ? bytes(size) : "");
      cell.style.setProperty("--heat", size ? 0.15 + (0.85 * size) / most : source === to ? 0 : 0.03);
      line.append(cell);
    }
    const predicted = row.predicted ? row.predicted.sent[source] : undefined;
    line.append(...[predicted, measured[source]].map((size) => html("td", { class: "total" }, size === undefined ? "–" : bytes(size))));
    return line;
  });
  matrix.replaceChildren(html("table", { "aria-label": "Bytes from rank to rank" }, html("thead", {}, head), html("tbody", {}, ...lines)));
  return undefined;
}
listeners.push(() => drawMemory(), drawTraffic);
drawTraffic();
