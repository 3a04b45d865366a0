// A sweep: time against a number for each route, what was predicted beside it, and every row.

function startSweep(host) {
  const { sweep } = scene;
  const { rows, axes } = sweep;
  const ok = rows.filter((row) => row.us !== null && row.status === "ok");
  const numeric = axes.filter((name) => new Set(ok.map((row) => row.values[name])).size > 1 && ok.every((row) => typeof row.values[name] === "number"));
  const named = axes.filter((name) => !numeric.includes(name) || numeric.length > 1);
  const state = { x: sweep.x || numeric[0] || axes[0], by: sweep.by || named.find((name) => name !== (sweep.x || numeric[0])) || axes[0], off: new Set(), pick: null };
  const chart = make("div", { class: "chart" });
  const legend = make("div", { class: "legend" });
  const best = make("p", { class: "best" });
  const NS = "http://www.w3.org/2000/svg";

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const word = (value) => (Array.isArray(value) ? `[${value.join(", ")}]` : String(value));
  const label = (row) => axes.map((name) => `${name} ${word(row.values[name])}`).join(", ");

  function series() {
    const names = [...new Set(rows.map((row) => word(row.values[state.by])))];
    return names.map((name, at) => ({ name, fill: scene.curves[at % scene.curves.length], rows: ok.filter((row) => word(row.values[state.by]) === name) }));
  }

  // The least at each place of the axis: the others differ in what is not drawn.
  function least(own, of) {
    const found = new Map();
    for (const row of own) {
      const place = row.values[state.x], value = row[of];
      if (value === null || value === undefined) continue;
      if (!found.has(place) || value < found.get(place)[of]) found.set(place, row);
    }
    return [...found.values()].sort((one, two) => compare(one.values[state.x], two.values[state.x], 1));
  }

  function places() {
    const found = [...new Set(ok.map((row) => row.values[state.x]))];
    return found.sort((one, two) => compare(one, two, 1));
  }

  function drawChart() {
    const width = Math.max(480, chart.clientWidth - 20), height = 420, left = 68, right = 24, top = 22, bottom = 46;
    const all = places(), isNumber = all.every((each) => typeof each === "number");
    const isLog = isNumber && all.length > 3 && all[0] > 0 && all[all.length - 1] / all[0] >= 8;
    const scale = (value) => (isLog ? Math.log2(value) : value);
    const first = isNumber ? scale(all[0]) : 0, last = isNumber ? scale(all[all.length - 1]) : all.length - 1;
    const x = (value) => {
      const at = isNumber ? scale(value) : all.findIndex((each) => word(each) === word(value));
      return left + 14 + (last > first ? (at - first) / (last - first) : 0.5) * (width - left - right - 28);
    };
    const shown = series().filter((each) => !state.off.has(each.name));
    const values = shown.flatMap((each) => [...least(each.rows, "us").map((row) => row.us), ...least(each.rows, "predicted_us").map((row) => row.predicted_us)]);
    if (!values.length) { chart.replaceChildren(make("p", { class: "hint" }, "No candidate that is ok has a time.")); return; }
    const low = Math.min(...values), high = Math.max(...values), pad = (high - low || high) * 0.08;
    const floor = Math.max(0, low - pad), ceiling = high + pad;
    const y = (value) => top + (1 - (value - floor) / (ceiling - floor)) * (height - top - bottom);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Time against ${state.x} for each ${state.by}` });
    for (const tick of ticks(floor, ceiling)) {
      picture.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
      picture.append(svg("text", { x: left - 10, y: y(tick) + 4, "text-anchor": "end" }, us(tick)));
    }
    let edge = -99;
    for (const place of all) {
      if (x(place) - edge < 34) continue;
      edge = x(place);
      picture.append(svg("text", { x: edge, y: height - bottom + 20, "text-anchor": "middle" }, word(place)));
      picture.append(svg("line", { class: "axis", x1: edge, x2: edge, y1: height - bottom, y2: height - bottom + 5 }));
    }
    picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    picture.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, state.x));
    const path = (own, of) => own.map((row, at) => `${at ? "L" : "M"}${x(row.values[state.x]).toFixed(1)} ${y(row[of]).toFixed(1)}`).join("");
    for (const each of shown) {
      const measured = least(each.rows, "us"), predicted = least(each.rows, "predicted_us");
      for (const row of each.rows) {
        if (measured.includes(row) || row.us > ceiling) continue;
        picture.append(dot(row, x(row.values[state.x]), y(row.us), each.fill, true));
      }
      if (predicted.length && sweep.basis !== "predicted") picture.append(svg("path", { class: "curve is-predicted", d: path(predicted, "predicted_us"), stroke: each.fill }));
      picture.append(svg("path", { class: "curve", d: path(measured, "us"), stroke: each.fill }));
      for (const row of measured) picture.append(dot(row, x(row.values[state.x]), y(row.us), each.fill, false));
    }
    if (sweep.baselineUs && sweep.baselineUs > floor && sweep.baselineUs < ceiling) {
      const tall = y(sweep.baselineUs);
      picture.append(svg("line", { class: "baseline", x1: left, x2: width - right, y1: tall, y2: tall }));
      picture.append(svg("text", { x: width - right, y: tall - 6, "text-anchor": "end" }, "baseline"));
    }
    const winner = rows[sweep.winner];
    if (winner && shown.some((each) => each.name === word(winner.values[state.by]))) {
      const at = x(winner.values[state.x]), tall = y(winner.us);
      picture.append(svg("path", { class: "star", d: star(at, tall, 9) }));
      const anchor = at > width - 220 ? "end" : at < left + 120 ? "start" : "middle";
      picture.append(svg("text", { class: "winner", x: at, y: tall + 28 < height - bottom ? tall + 24 : tall - 15, "text-anchor": anchor }, `${us(winner.us)}: ${label(winner)}`));
    }
    chart.replaceChildren(picture);
  }

  function dot(row, x, y, fill, isOther) {
    const element = svg("circle", { class: `dot${isOther ? " is-other" : ""}`, cx: x, cy: y, r: isOther ? 3 : 4.5, fill, "data-row": row.index });
    element.addEventListener("pointermove", (event) => showTip(event, make("div", { class: "name" }, us(row.us)), facts([
      ...axes.map((name) => [name, word(row.values[name])]), ["predicted", row.predicted_us === undefined ? null : us(row.predicted_us)], ["status", row.status]])));
    element.addEventListener("pointerleave", hideTip);
    element.addEventListener("click", () => table.pick(rows.indexOf(row)));
    return element;
  }

  function star(x, y, size) {
    return Array.from({ length: 10 }, (_, at) => {
      const reach = at % 2 ? size * 0.45 : size, angle = Math.PI * (at / 5 - 0.5);
      return `${at ? "L" : "M"}${(x + reach * Math.cos(angle)).toFixed(1)} ${(y + reach * Math.sin(angle)).toFixed(1)}`;
    }).join("") + "z";
  }

  function ticks(from, to) {
    const power = 10 ** Math.floor(Math.log10((to - from) / 4));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => (to - from) / each <= 6) || 10 * power;
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
  }

  function fillLegend() {
    legend.replaceChildren(...series().map((each) => make("button", {
      class: "chip", type: "button", "aria-pressed": String(!state.off.has(each.name)), title: "Click to hide or show",
      onclick: () => { if (!state.off.delete(each.name)) state.off.add(each.name); fillLegend(); drawChart(); },
    }, make("i", { style: `background-color:${each.fill}` }), each.name)));
    if (rows.some((row) => row.predicted_us !== undefined && row.predicted_us !== null) && sweep.basis !== "predicted") {
      const said = make("span", { class: "hint" });
      said.innerHTML = '<svg width="60" height="8" aria-hidden="true"><path d="M0 4H26" stroke="currentColor" stroke-width="2"/><path d="M34 4H60" stroke="currentColor" stroke-width="1.6" stroke-dasharray="5 4"/></svg>';
      legend.append(said, make("span", { class: "hint" }, "measured, predicted"));
    }
  }

  function select(name, value, names, act) {
    return make("label", { class: "hint" }, `${name} `, make("select", { onchange: (event) => { act(event.target.value); fillLegend(); drawChart(); } },
      ...names.map((each) => make("option", { value: each, selected: each === value }, each))));
  }

  const tools = make("div", { class: "tools" });
  if (axes.length > 1) {
    tools.append(select("across", state.x, axes, (value) => { state.x = value; }), select("a line for each", state.by, axes, (value) => { state.by = value; state.off.clear(); }));
  }
  const head = make("div", { class: "head" }, make("h2", {}, "Time"), make("span", { class: "hint" }, `the least at each place; paler: the others · ${sweep.basisText}`), make("span", { class: "grow" }), tools);
  host.append(make("section", { class: "card", "aria-label": "Curve" }, head, best, chart, legend));
  best.hidden = true;
  const table = tableCard(sweep.table, { isWide: true, isFiltered: true, sortBy: "time", rowLook: (_, at) => (at === sweep.winner ? "is-winner" : rows[at].status === "ok" ? "" : "is-bad") });
  host.append(table);
  fillLegend();
  new ResizeObserver(drawChart).observe(chart);
  themeListeners.push(drawChart);
}
