// Figure 4: the predicted over the measured steps of the chosen plan, on one axis.
//
//   rank 0 compute   p |##F##|####B####|U|        strips of a row: p predicted, m measured
//                    m |###F###|###B####|U|

const canvas = byId("lanes");
const pen = canvas.getContext("2d");
const BAR = 14;
const AXIS = 24;
const view = { low: 0, high: 1, end: 1, rows: [], strips: [], at: null, width: 0 };
const wide = () => view.width >= 640;
const left = () => (wide() ? 150 : 16);
const rowHeight = () => 2 * BAR + (wide() ? 11 : 25);
const toX = (at) => left() + ((at - view.low) / (view.high - view.low)) * (view.width - left() - 2);
const toTime = (x) => view.low + ((x - left()) / (view.width - left() - 2)) * (view.high - view.low);
const KINDS = ["forward", "backward", "optimizer", "codec", "data", "messages", "other"];
const NAMES = ["paper", "ink", "soft", "rule", ...KINDS.map((kind) => `k-${kind}`)];
const COLOURS = {};

/** Spans of one side by "rank lane": [{name, kind, round, start, end, twin}], in seconds. */
function unpack(side, letter) {
  const found = new Map();
  if (!side) return found;
  const { unit, lanes, names, spans, last } = side.lanes;
  for (let i = 0; i < spans.length; i += 5) {
    const [lane, name, round, start, length] = spans.slice(i, i + 5);
    const key = lanes[lane].join(" ");
    if (!found.has(key)) found.set(key, []);
    const [label, kind, part] = names[name];
    found.get(key).push({
      name: label, kind, part, round, letter, rank: lanes[lane][0], lane: lanes[lane][1],
      key: `${label} ${round - last}`, start: start * unit, end: (start + length) * unit,
    });
  }
  return found;
}

function load() {
  const row = chosen();
  const sides = [unpack(row && row.predicted, "p"), unpack(row && row.measured, "m")];
  const keys = [...new Set(sides.flatMap((side) => [...side.keys()]))];
  keys.sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  view.rows = keys.map((key) => ({ key, strips: sides.map((side) => side.get(key) || []) }));
  view.strips = view.rows.flatMap((each, row) => each.strips.map((spans, side) => ({ spans, row, side })))
    .filter(({ spans }) => spans.length);
  for (const { strips: [predicted, measured] } of view.rows) {
    const twins = new Map(predicted.map((span) => [span.key, span]));
    for (const span of measured) {
      span.twin = twins.get(span.key);
      if (span.twin) span.twin.twin = span;
    }
  }
  view.end = Math.max(...view.strips.flatMap(({ spans }) => spans.map((span) => span.end)), 0) || 1;
  view.at = null;
  byId("timeline").hidden = !view.strips.length;
  look(0, view.end);
  tell();
}

/** Show the time from `low` to `high`, kept within the whole. */
function look(low, high) {
  const length = clamp(high - low, view.end * 1e-5, view.end);
  view.low = clamp(low, 0, view.end - length);
  view.high = view.low + length;
  canvas.dataset.low = view.low;
  canvas.dataset.high = view.high;
  const part = `${seconds(view.low)} to ${seconds(view.high)} of ${seconds(view.end)}`;
  byId("window").textContent = length < view.end * 0.999 ? part : `${seconds(view.end)} in all`;
  paint();
}

function zoom(factor, around = (view.low + view.high) / 2) {
  const length = clamp((view.high - view.low) * factor, view.end * 1e-5, view.end);
  const share = (around - view.low) / (view.high - view.low);
  look(around - share * length, around + (1 - share) * length);
}
const pan = (share) => look(view.low + share * (view.high - view.low), view.high + share * (view.high - view.low));

function size() {
  const ratio = devicePixelRatio || 1;
  const height = AXIS + view.rows.length * rowHeight() + 4;
  view.width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(view.width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(view.width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, view.width, height);
  return height;
}

function paint() {
  const height = size();
  for (const name of NAMES) COLOURS[name] = colour(`--${name}`);
  const family = getComputedStyle(canvas.parentElement).getPropertyValue("--sans");
  pen.font = `11px ${family}`;
  pen.textBaseline = "middle";
  for (const tick of ticks(view.low, view.high, view.width / 130)) {
    pen.fillStyle = COLOURS.rule;
    pen.fillRect(toX(tick), AXIS - 4, 1, height);
    pen.fillStyle = COLOURS.soft;
    pen.textAlign = toX(tick) > view.width - 30 ? "right" : toX(tick) < left() + 20 ? "left" : "center";
    pen.fillText(seconds(tick), toX(tick), AXIS / 2 - 2);
  }
  view.rows.forEach(paintRow);
}

function stripTop(row, side) {
  return AXIS + row * rowHeight() + (wide() ? 4 : 18) + side * (BAR + 1);
}

function paintRow({ strips, key }, row) {
  const [rank, ...lane] = key.split(" ");
  if (row) {
    pen.fillStyle = COLOURS.rule;
    pen.fillRect(0, AXIS + row * rowHeight() - 1, view.width, 1);
  }
  pen.textAlign = "left";
  pen.fillStyle = COLOURS.ink;
  if (wide()) pen.fillText(short(`rank ${rank}  ${lane.join(" ")}`, 22), 0, stripTop(row, 1) - 1);
  else pen.fillText(`rank ${rank}, ${lane.join(" ")}`, 0, stripTop(row, 0) - 9);
  strips.forEach((spans, side) => {
    pen.fillStyle = COLOURS.soft;
    pen.textAlign = "left";
    if (spans.length) pen.fillText("pm"[side], left() - 14, stripTop(row, side) + BAR / 2);
    paintStrip(spans, stripTop(row, side));
  });
}

function paintStrip(spans, top) {
  let covered = -1;
  for (const span of spans) {
    if (span.end < view.low || span.start > view.high) continue;
    const from = Math.max(toX(span.start), left());
    const to = Math.min(Math.max(toX(span.end), from + 0.75), view.width - 2);
    if (to <= covered + 0.25) continue; // under what is drawn already
    covered = to;
    pen.fillStyle = COLOURS[`k-${span.part}`];
    const gap = to - from > 3 ? 0.75 : 0;
    pen.fillRect(from, top, to - from - gap, BAR);
    if (to - from > span.name.length * 6.4 + 6) {
      pen.fillStyle = legible(COLOURS[`k-${span.part}`], COLOURS.paper, COLOURS.ink);
      pen.textAlign = "left";
      pen.fillText(span.name, from + 4, top + BAR / 2 + 0.5);
    }
    if (view.at && (span === view.at || span === view.at.twin)) {
      pen.strokeStyle = COLOURS.ink;
      pen.lineWidth = span === view.at ? 2 : 1;
      pen.strokeRect(from - 0.5, top - 0.5, Math.max(to - from, 2), BAR + 1);
    }
  }
}

/** What is under a point of the canvas: the nearest span within three pixels of its strip. */
function under(x, y) {
  const strip = view.strips.find(({ row, side }) => y >= stripTop(row, side) && y < stripTop(row, side) + BAR + 1);
  if (!strip || x < left()) return null;
  const away = (span) => Math.max(toX(span.start) - x, x - toX(span.end), 0);
  const best = strip.spans.reduce((one, other) => (away(other) < away(one) ? other : one));
  return away(best) <= 3 ? best : null;
}

/** The chosen instruction in words, beside the same instance of the other side. */
function tell() {
  const place = byId("instruction");
  const span = view.at;
  if (!span) return place.replaceChildren("Point at an instruction, or tap it, to read what it is.");
  const [p, m] = span.letter === "p" ? [span, span.twin] : [span.twin, span];
  const long = (each) => each.end - each.start;
  const when = (each) => `${seconds(long(each))}, from ${seconds(each.start)} to ${seconds(each.end)}`;
  const side = (name, each) => (each ? `${name} ${when(each)}` : `not among the ${name} instructions shown`);
  const ratio = p && m && long(p) > 0 && long(m) > 0 ? `; ln p/m ${signed(Math.log(long(p) / long(m)))}` : "";
  place.replaceChildren(
    html("b", {}, span.name),
    ` ${span.kind} (${span.part}), rank ${span.rank}, lane ${span.lane}, round ${span.round}`,
    html("br"), `${side("predicted", p)}; ${side("measured", m)}${ratio}`,
  );
  return undefined;
}

function choose(span, show = false) {
  if (span === view.at) return;
  view.at = span;
  if (show && span && (span.start < view.low || span.end > view.high)) {
    const length = view.high - view.low;
    look(span.start - length / 4, span.start + (3 * length) / 4);
  } else paint();
  tell();
}

/** Go `forward` instructions along the lane, or `down` lanes. */
function walk(forward, down) {
  const now = Math.max(view.strips.findIndex(({ spans }) => spans.includes(view.at)), 0);
  const next = view.strips[clamp(now + down, 0, view.strips.length - 1)].spans;
  if (!view.at) return choose(next.find((span) => span.end > view.low) || next[0], true);
  if (!down) return choose(next[clamp(next.indexOf(view.at) + forward, 0, next.length - 1)], true);
  const near = (span) => Math.abs(span.start + span.end - view.at.start - view.at.end);
  return choose(next.reduce((one, other) => (near(other) < near(one) ? other : one)), true);
}

const ACTIONS = {
  in: () => zoom(0.5), out: () => zoom(2),
  left: () => pan(-0.25), right: () => pan(0.25), all: () => look(0, view.end),
  previous: () => walk(-1, 0), next: () => walk(1, 0), up: () => walk(0, -1), down: () => walk(0, 1),
};
const KEYS = {
  "+": "in", "=": "in", "-": "out", 0: "all", ",": "previous", ".": "next",
  ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
};
canvas.addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  ACTIONS[KEYS[event.key]]();
});
for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", () => ACTIONS[button.dataset.do]());
}

// The wheel scrolls the page until the timeline has the focus, so that nobody is caught in it.
canvas.addEventListener("wheel", (event) => {
  const ours = document.activeElement === canvas || event.ctrlKey || event.metaKey;
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / view.width);
  else if (ours) zoom(1.0015 ** clamp(event.deltaY, -400, 400), toTime(event.offsetX));
  else return;
  event.preventDefault();
}, { passive: false });

const pointers = new Map();
let dragged = 0;
canvas.addEventListener("pointerdown", (event) => {
  pointers.set(event.pointerId, event.offsetX);
  dragged = 0;
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const x = event.offsetX;
  if (!pointers.has(event.pointerId)) return choose(under(x, event.offsetY) || view.at);
  const before = pointers.get(event.pointerId);
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
  pointers.set(event.pointerId, x);
  dragged += Math.abs(x - before);
  const apart = (at) => Math.max(Math.abs(at - others[0]), 8);
  if (others.length) return zoom(apart(before) / apart(x), toTime(others[0]));
  if (dragged > 3) look(view.low + toTime(before) - toTime(x), view.high + toTime(before) - toTime(x));
  return undefined;
});
for (const name of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    if (name === "pointerup" && dragged <= 3) choose(under(event.offsetX, event.offsetY));
  });
}

drawn(canvas.parentElement, paint);
listeners.push(load);
if (byId("thinned")) byId("left-out").textContent = "Some instructions are left out; see the end of the page.";
if (detailed.length) load();
else document.querySelector("[aria-labelledby=detail]").hidden = true;
themed();
