// Table 1: rows in the order of a column. Rows that say an error stay last.

const table = byId("table");
const body = table.tBodies[0];

function keyOf(row, name) {
  if (name === "class") return row.cells[0].dataset.class;
  const cell = row.querySelector(`.c-${name}`);
  const key = cell ? cell.dataset.key : "";
  return key !== "" && name !== "plan" ? Number(key) : key;
}

/** Closeness to zero is what counts of an error; unknown values follow the known ones either way. */
function sortBy(name, falling) {
  const size = (key) => (["ln", "sum", "max"].includes(name) && key !== "" ? Math.abs(key) : key);
  const rows = [...body.rows].map((row) => [row.classList.contains("error"), size(keyOf(row, name)), row]);
  rows.sort(([wrong, a, one], [fails, b, other]) => {
    if (wrong !== fails) return wrong - fails;
    if ((a === "") !== (b === "")) return (a === "") - (b === "");
    const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b));
    return (falling ? -order : order) || one.dataset.place - other.dataset.place;
  });
  body.append(...rows.map(([, , row]) => row));
}

for (const button of table.querySelectorAll("button[data-sort]")) {
  button.addEventListener("click", () => {
    const falling = button.dataset.order === "rising";
    for (const other of table.querySelectorAll("button[data-sort]")) delete other.dataset.order;
    for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
    button.dataset.order = falling ? "falling" : "rising";
    button.closest("th").setAttribute("aria-sort", falling ? "descending" : "ascending");
    sortBy(button.dataset.sort, falling);
    byId("sorted").textContent = `Sorted by ${button.textContent}, ${falling ? "falling" : "rising"}`;
  });
}
