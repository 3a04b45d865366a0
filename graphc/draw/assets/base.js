"use strict";

// What all pages share: elements, numbers as people read them, light and dark, tables.

const scene = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((each) => each !== null && each !== undefined));
  return element;
}

function us(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)} s`;
  if (size >= 1000) return `${(value / 1000).toFixed(2)} ms`;
  return `${value.toFixed(size >= 100 ? 0 : 1)} us`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < units.length - 1; at += 1) value /= 1000;
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

function signed(value) {
  return `${value > 0 ? "+" : ""}${value.toFixed(1)} %`;
}

const written = {
  text: (value) => (value === null ? "" : String(value)),
  us: (value) => us(value),
  number: (value) => (value === null ? "–" : Number(value).toLocaleString("en")),
  share: (value) => `${(100 * value).toFixed(1)} %`,
  percent: (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`),
  error: (value) => (value === null ? "–" : signed(100 * value)),
};

function colour(name) {
  return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
}

const themeListeners = [];

function setTheme(name) {
  root.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  themeListeners.forEach((each) => each());
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () =>
    setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
}

// A table that sorts by a click on a column's head. `table.rows` are arrays of plain values.
const FEW = 300;

function tableCard(table, options = {}) {
  const { isWide = false, rowLook = () => "", onRow = null, isFiltered = false, sortBy = null } = options;
  let rows = table.rows.map((cells, at) => ({ cells, at }));
  let sorted = null;
  let isAll = false;
  let filter = "";
  const body = make("tbody");
  const more = make("div", { class: "more", hidden: true });
  const heads = table.columns.map((column, at) => make("th", {
    class: column.kind === "text" ? null : "is-number", tabindex: "0", scope: "col",
    onclick: () => sort(at),
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(at); } },
  }, column.name));

  function sort(at, isFirstUp = table.columns[at].kind === "text") {
    const isUp = sorted && sorted.at === at ? !sorted.isUp : isFirstUp;
    sorted = { at, isUp };
    heads.forEach((head, index) => {
      if (index === at) head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    const sign = isUp ? 1 : -1;
    rows.sort((one, two) => sign * compare(one.cells[at], two.cells[at], sign) || one.at - two.at);
    fill();
  }

  function fill() {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length
      ? rows.filter((row) => { const text = row.cells.join(" ").toLowerCase(); return words.every((word) => text.includes(word)); })
      : rows;
    const shown = isAll ? found : found.slice(0, FEW);
    body.replaceChildren(...shown.map(rowOf));
    more.hidden = shown.length === found.length;
    more.replaceChildren(`${shown.length} of ${found.length} rows`, make("button", {
      class: "button", type: "button", onclick: () => { isAll = true; fill(); },
    }, "Show all"));
  }

  function rowOf(row) {
    const cells = row.cells.map((value, at) => {
      const { kind } = table.columns[at];
      const isOff = kind === "error" && value !== null && Math.abs(value) > 0.1;
      const look = kind === "text" ? "is-text" : `is-number${isOff ? (value > 0 ? " over" : " under") : ""}`;
      const share = kind === "share" ? `--share: ${Math.min(1, value)}` : null;
      return make("td", { class: `${look}${share ? " is-share" : ""}`, style: share }, written[kind](value));
    });
    return make("tr", {
      class: rowLook(row.cells, row.at) || null, "data-row": row.at,
      "data-op": onRow ? row.cells[0] : null, onclick: onRow ? () => onRow(row.cells, row.at) : null,
    }, ...cells);
  }

  const head = make("div", { class: "head" }, make("h2", {}, table.title));
  if (table.note) head.append(make("span", { class: "hint" }, table.note));
  if (isFiltered) {
    head.append(make("span", { class: "grow" }), make("input", {
      class: "filter", type: "search", placeholder: "Filter rows", "aria-label": `Filter ${table.title}`,
      oninput: (event) => { filter = event.target.value; fill(); },
    }));
  }
  const card = make("section", { class: `card${isWide ? " is-wide" : ""}`, "data-table": table.title }, head,
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body)), more);
  const first = table.columns.findIndex((column) => column.name === sortBy);
  if (first < 0) fill(); else sort(first, true);
  card.pick = (at) => {
    let row = body.querySelector(`tr[data-row="${at}"]`);
    if (!row) { isAll = true; filter = ""; fill(); row = body.querySelector(`tr[data-row="${at}"]`); }
    body.querySelectorAll(".is-picked").forEach((each) => each.classList.remove("is-picked"));
    if (row) { row.classList.add("is-picked"); row.scrollIntoView({ block: "nearest" }); }
  };
  return card;
}

// What is missing comes last, whichever way the column is sorted.
function compare(one, two, sign) {
  if (one === two) return 0;
  if (one === null) return sign;
  if (two === null) return -sign;
  if (typeof one === "number" && typeof two === "number") return one - two;
  return String(one).localeCompare(String(two), "en", { numeric: true });
}

// The tip beside the pointer.
const tip = document.getElementById("tip");

function showTip(event, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const top = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, top)}px`;
}

function hideTip() {
  tip.hidden = true;
}

function facts(pairs) {
  const list = make("dl");
  for (const [name, value, look] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(make("dt", {}, name), make("dd", { class: look || null }, value));
  }
  return list;
}
