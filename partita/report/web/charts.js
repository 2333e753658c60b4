// Figures 1 to 3: time and memory, losses.

const fullest = (numbers) => (numbers && numbers.length ? Math.max(...numbers) : 0);
function pointOf(side) {
  return side && side.step > 0 && fullest(side.memory) > 0 ? [side.step, fullest(side.memory)] : null;
}

/** The points that no other is as good as in both, from left to right. */
function frontier(points) {
  const found = [];
  for (const point of [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1])) {
    if (!found.length || point[1] < found[found.length - 1][1]) found.push(point);
  }
  return found;
}

/** A place for a name beside its mark that covers no other name or mark. */
function label(taken, x, y, width, bounds) {
  const height = 13;
  const over = -width / 2;
  const near = [9, -9 - width].flatMap((side) => [[side, 4], [side, -9], [side, 17]]).concat([[over, -13], [over, 23]]);
  const beside = (d) => [d, -d - width].flatMap((side) => [[side, 4 - d / 2], [side, 4 + d]]);
  const far = [26, 42, 60].flatMap((d) => [...beside(d), [over, -d], [over, d + 10]]);
  for (const [dx, dy] of [...near, ...far]) {
    const box = [x + dx, y + dy - height + 3, x + dx + width, y + dy + 3];
    const free = taken.every((t) => box[2] < t[0] || box[0] > t[2] || box[3] < t[1] || box[1] > t[3]);
    const inside = box[0] >= bounds.left && box[2] <= bounds.right && box[1] >= bounds.top - 12;
    if (free && inside && box[3] <= bounds.bottom) {
      taken.push(box);
      return { x: x + dx, y: y + dy, far: !near.some(([one, other]) => one === dx && other === dy) };
    }
  }
  return null;
}

const pareto = byId("pareto");
drawn(pareto, (width) => {
  const points = ROWS.map((row, place) => ({ row, place, p: pointOf(row.predicted), m: pointOf(row.measured) }))
    .filter(({ p, m }) => p || m);
  if (!points.length) return empty(pareto, "No plan has both a step and a peak of memory.");
  const latest = ({ row, m }) => (m && row.measured.n > 1 ? [row.measured.high, m[1]] : null);
  const all = points.flatMap((each) => [each.p, each.m, latest(each)].filter(Boolean));
  const x = axis(all.map(([step]) => step), seconds, "seconds a step", { count: width / 140 });
  const y = axis(all.map(([, size]) => size), bytes, "peak memory of the fullest rank", { base: 1024 });
  const plot = axes(pareto, width, clamp(width * 0.42, 300, 400), x, y, "Step and memory of each plan");
  const front = frontier(points.map(({ p, m }) => m || p)).map(([step, size]) => [plot.x(step), plot.y(size)]);
  const stairs = front.flatMap(([a, b], i) => (i ? [[a, front[i - 1][1]], [a, b]] : [[a, b]]));
  plot.picture.append(svg("path", { class: "front", d: path(stairs) }));
  const title = [plot.inner.left, plot.inner.top - 15, plot.inner.left + y.title.length * 6, plot.inner.top - 2];
  const taken = [title, ...points.flatMap((each) => covered(each, plot))];
  for (const { row, place, p, m } of points) drawPoint(plot, row, place, p, m, taken, width);
});

/** What a plan's marks and lines cover, as boxes. */
function covered({ row, p, m }, plot) {
  const ends = m && row.measured.n > 1 ? [[row.measured.low, m[1]], [row.measured.high, m[1]]] : [m || p, m || p];
  return [[p || m, m || p], ends].flatMap(([one, other]) => [0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => {
    const x = plot.x(one[0]) * (1 - share) + plot.x(other[0]) * share;
    const y = plot.y(one[1]) * (1 - share) + plot.y(other[1]) * share;
    return [x - 6, y - 6, x + 6, y + 6];
  }));
}

function drawPoint(plot, row, place, p, m, taken, width) {
  const marks = svg("g", { class: `p${place % 10}`, tabindex: "0", role: "img" });
  const [x, y] = [plot.x((m || p)[0]), plot.y((m || p)[1])];
  const rule = (from, to, opacity) => marks.append(svg("path", { class: "whisker", opacity, d: path([from, to]) }));
  if (p && m) rule([plot.x(p[0]), plot.y(p[1])], [x, y], ".55");
  if (m && row.measured.n > 1) rule([plot.x(row.measured.low), y], [plot.x(row.measured.high), y], "1");
  if (p) marks.append(svg("circle", { class: "ring", cx: plot.x(p[0]), cy: plot.y(p[1]), r: 4.5 }));
  if (m) marks.append(svg("circle", { class: "full", cx: x, cy: y, r: 4.5 }));
  marks.append(svg("circle", { class: "hit", cx: x, cy: y, r: 13 }));
  const said = [["predicted", p], ["measured", m]].filter(([, at]) => at);
  const words = [row.plan, ...said.map(([name, at]) => `${name} ${seconds(at[0])}, ${bytes(at[1])}`)].join("\n");
  marks.setAttribute("aria-label", words.replaceAll("\n", ", "));
  const name = short(row.plan, width < 640 ? 16 : 34);
  const at = label(taken, x, y, name.length * 6.6, plot.inner);
  if (at && at.far) {
    const end = { x2: clamp(x, at.x, at.x + name.length * 6.2), y2: at.y < y ? at.y + 4 : at.y - 10 };
    marks.append(svg("line", { class: "leader", x1: x, y1: y, ...end }));
  }
  if (at) marks.append(svg("text", { class: "name", x: at.x, y: at.y }, name));
  plot.picture.append(marks);
  hint(pareto, marks, words, x, y);
}

const learned = ROWS.map((row, place) => ({ row, place, loss: row.loss }))
  .filter(({ loss }) => loss && loss.samples.length);
const hidden = new Set();
const readings = new Map();
const redrawLosses = [];

function drawLosses(place, key, title, say) {
  const again = drawn(place, (width) => {
    const shown = learned.filter(({ place }) => !hidden.has(place));
    const points = shown.flatMap(({ loss }) => [...loss[key], ...loss.held[key].map(([x, y]) => [x, y, y, y])]);
    if (!points.length) return empty(place, "No loss is shown.");
    const x = axis([0, ...points.map((point) => point[0])], say, title, { count: width / 110 });
    const y = axis(points.flatMap((point) => [point[2], point[3]]), number, "loss", { zero: false });
    x.high = Math.max(...points.map((point) => point[0]));
    x.ticks = x.ticks.filter((tick) => tick <= x.high);
    const plot = axes(place, width, 300, x, y, `Loss against ${title}`);
    for (const { row, place: at, loss } of shown) {
      const line = loss[key].map(([x, middle]) => [plot.x(x), plot.y(middle)]);
      const words = `${row.plan}, last ${number(loss[key].at(-1)[1])}`;
      const group = svg("g", { class: `p${at % 10}`, "data-plan": at, role: "img", "aria-label": words });
      if (loss.repeats > 1) {
        const upper = loss[key].map(([x, , , high]) => [plot.x(x), plot.y(high)]);
        const lower = loss[key].map(([x, , low]) => [plot.x(x), plot.y(low)]).reverse();
        group.append(svg("path", { class: "band", d: `${path([...upper, ...lower])}Z` }));
      }
      group.append(svg("path", { class: "line", "stroke-dasharray": dash(at), d: path(line) }));
      plot.picture.append(group);
      for (const [x, y] of loss.held[key]) {
        group.append(svg("circle", { class: "ring", cx: plot.x(x), cy: plot.y(y), r: 4 }));
      }
    }
    readLosses(plot, shown, key, x, width);
  });
  redrawLosses.push(again);
}

/** A rule under the pointer; the legend says every plan's loss there. */
function readLosses(plot, shown, key, x, width) {
  const rule = svg("line", { class: "axis", y1: plot.inner.top, y2: plot.inner.bottom, visibility: "hidden" });
  plot.picture.append(rule);
  const move = (event) => {
    const box = plot.picture.getBoundingClientRect();
    const at = clamp(((event.clientX - box.left) / box.width) * width, plot.inner.left, plot.inner.right);
    rule.setAttribute("x1", at);
    rule.setAttribute("x2", at);
    rule.setAttribute("visibility", "visible");
    for (const { place, loss } of shown) {
      const found = loss[key].filter((point) => plot.x(point[0]) <= at + 1).at(-1);
      readings.get(place).textContent = found ? number(found[1]) : "";
    }
  };
  plot.picture.addEventListener("pointermove", move);
  plot.picture.addEventListener("pointerdown", move);
  plot.picture.addEventListener("pointerleave", () => {
    rule.setAttribute("visibility", "hidden");
    lastReadings();
  });
}

function lastReadings() {
  for (const { place, loss } of learned) readings.get(place).textContent = number(loss.samples.at(-1)[1]);
}

function stress(place) {
  for (const group of document.querySelectorAll("#losses [data-plan]")) {
    group.classList.toggle("dim", place !== null && Number(group.dataset.plan) !== place);
  }
}

if (learned.length) {
  for (const { row, place } of learned) {
    const key = svg("svg", { viewBox: "0 0 22 8", class: `p${place % 10}`, "aria-hidden": "true" });
    key.append(svg("path", { class: "line", d: "M0 4H22", "stroke-dasharray": dash(place) }));
    const reading = html("output");
    const button = html("button", { type: "button", "aria-pressed": "true" }, key, row.plan, reading);
    readings.set(place, reading);
    button.addEventListener("click", () => {
      if (!hidden.delete(place)) hidden.add(place);
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      for (const draw of redrawLosses) draw();
    });
    for (const [event, target] of [["pointerenter", place], ["focus", place], ["pointerleave", null], ["blur", null]]) {
      button.addEventListener(event, () => stress(target));
    }
    byId("loss-legend").append(button);
  }
  lastReadings();
  drawLosses(byId("loss-samples"), "samples", "samples", number);
  drawLosses(byId("loss-seconds"), "seconds", "seconds", seconds);
  const repeats = Math.max(...learned.map(({ loss }) => loss.repeats));
  const bands = `. Lines are medians, bands the range of ${repeats} repeats`;
  byId("bands").textContent = repeats > 1 ? bands : "; one repeat, so no bands";
  byId("rings").hidden = learned.every(({ loss }) => !loss.held.samples.length);
} else {
  byId("losses").hidden = true;
}
