// One plan in detail: its memory (Figure 5, drawn in memory.js) and its messages (Figure 6).

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
listeners.push(drawTraffic);
drawTraffic();
