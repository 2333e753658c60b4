// What every part uses: the data, elements, numbers in words, colours, the theme.

const ROWS = JSON.parse(document.getElementById("data").textContent).rows;
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

/** An element with attributes; children are elements or text, never markup. */
function element(space, name, attributes, children) {
  const made = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const html = (name, attributes, ...children) => element("", name, attributes, children);
const svg = (name, attributes, ...children) => element("http://www.w3.org/2000/svg", name, attributes, children);

/** Three digits and a unit, as the terminal says it. */
function scaled(value, steps) {
  if (!value) return "0";
  const [scale, unit] = steps.find(([scale]) => Math.abs(value) >= scale) || steps[steps.length - 1];
  return `${Number((value / scale).toPrecision(3))} ${unit}`;
}
const TIMES = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const COUNTS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const seconds = (value) => scaled(value, TIMES);
const bytes = (value) => scaled(value, SIZES);
const number = (value) => (Math.abs(value) >= 1e4 ? scaled(value, COUNTS) : String(Number(value.toPrecision(4))));
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Round numbers from low to high, about `count` of them, in powers of `base` (1024 for bytes). */
function ticks(low, high, count, base = 10) {
  const rough = (high - low) / count || 1;
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const step = power * steps.find((step) => step * power >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(at);
  return found;
}

const probe = html("span", { hidden: "" });
document.body.append(probe);
/** A custom property as a colour that a canvas takes. */
function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Whichever of two colours, as [r, g, b] texts of CSS, is easier to read on a third. */
function legible(on, one, other) {
  const light = (text) => {
    const [r, g, b] = text.match(/[\d.]+/g).map((x) => (x / 255) ** 2.2);
    return 0.21 * r + 0.72 * g + 0.07 * b + 0.05;
  };
  const apart = (text) => Math.max(light(text), light(on)) / Math.min(light(text), light(on));
  return apart(one) >= apart(other) ? one : other;
}

const drawings = [];
/** Draw now, when the element's width changes, and when the theme does. */
function drawn(place, draw) {
  let width = 0;
  const again = () => place.clientWidth && draw(place.clientWidth);
  drawings.push(again);
  new ResizeObserver(() => {
    if (place.clientWidth !== width) {
      width = place.clientWidth;
      again();
    }
  }).observe(place);
  return again;
}

const outside = matchMedia("(prefers-color-scheme: dark)");
const themeButton = byId("theme");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : outside.matches);
function themed() {
  themeButton.textContent = dark() ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
  for (const draw of drawings) draw();
}
themeButton.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  themed();
});
outside.addEventListener("change", themed);
