// Axes, marks and hints that all plots share.

const MARGIN = { top: 14, right: 14, bottom: 40, left: 62 };

/** A scale: linear from `low` to `high`, or logarithmic where they are far apart. */
function scale(low, high, from, to, logarithmic = false) {
  const of = logarithmic ? Math.log : (value) => value;
  const span = of(high) - of(low) || 1;
  return (value) => from + ((of(value) - of(low)) / span) * (to - from);
}

/** An SVG with axes: `x` and `y` are {low, high, ticks, say, title}; gives {picture, x, y} with scales. */
function axes(place, width, height, x, y, label) {
  const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const atX = scale(x.low, x.high, inner.left, inner.right, x.log);
  const atY = scale(y.low, y.high, inner.bottom, inner.top, y.log);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label });
  for (const tick of y.ticks) {
    const at = atY(tick);
    picture.append(
      svg("line", { class: "grid", x1: inner.left, x2: inner.right, y1: at, y2: at }),
      svg("text", { x: inner.left - 8, y: at + 4, "text-anchor": "end" }, y.say(tick)),
    );
  }
  for (const tick of x.ticks) {
    const at = atX(tick);
    picture.append(
      svg("line", { class: "axis", x1: at, x2: at, y1: inner.bottom, y2: inner.bottom + 4 }),
      svg("text", { x: at, y: inner.bottom + 17, "text-anchor": "middle" }, x.say(tick)),
    );
  }
  picture.append(
    svg("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }),
    svg("text", { x: inner.right, y: height - 6, "text-anchor": "end" }, x.title),
    svg("text", { x: inner.left, y: inner.top - 4 }, y.title),
  );
  place.replaceChildren(picture);
  return { picture, x: atX, y: atY, inner };
}

/** Bounds and ticks of an axis for these values; far-apart ones are logarithmic. */
function axis(values, say, title, { count = 5, base = 10, zero = true } = {}) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (low > 0 && high / low > 12) {
    const powers = [];
    const factor = base === 10 ? 10 : 4;
    for (let p = Math.floor(Math.log(low) / Math.log(factor)); factor ** p < high * factor; p += 1) {
      if (factor ** p >= low * 0.6 && factor ** p <= high * 1.6) powers.push(factor ** p);
    }
    return { low: low * 0.7, high: high * 1.3, ticks: powers, say, title: `${title}, logarithmic`, log: true };
  }
  const bottom = zero ? 0 : low - (high - low || Math.abs(high) || 1) * 0.06;
  const top = high + (high - bottom || 1) * 0.08;
  return { low: bottom, high: top, ticks: ticks(bottom, top, count, base), say, title };
}

/** Words beside a mark while the pointer is on it or it has the focus. */
function hint(place, mark, words, x, y) {
  const show = () => {
    hide();
    const tip = html("div", { class: "tip" }, words);
    place.append(tip);
    tip.style.left = `${clamp(x + 12, 0, place.clientWidth - tip.offsetWidth)}px`;
    tip.style.top = `${Math.max(y - tip.offsetHeight - 10, 0)}px`;
  };
  const hide = () => place.querySelectorAll(".tip").forEach((tip) => tip.remove());
  mark.addEventListener("pointerenter", show);
  mark.addEventListener("focus", show);
  mark.addEventListener("pointerleave", hide);
  mark.addEventListener("blur", hide);
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const dash = (place) => ["none", "7 3", "2 3", "9 3 2 3"][Math.floor(place / 10) % 4];
function empty(place, words) {
  place.replaceChildren(html("p", { class: "empty" }, words));
}
