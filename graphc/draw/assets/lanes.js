// Timelines: one panel a view, a lane a stream, all on one axis of time; memory beneath.

const GUTTER = 128, TOP = 26, LANE = 26, BOX = 19, BAND = 22, GAP = 10, FEWEST_US = 0.02;
const ARENA_GAP = 8, MAP = 38, MANY_ARROWS = 260;

function startLanes(host) {
  const { ops } = scene;
  const views = scene.views.map(prepared);
  const longest = Math.max(1e-6, ...views.map((view) => view.stopUs));
  const margin = longest * 0.012;
  const whole = { from: -margin, to: longest + margin };
  const state = {
    from: whole.from, to: whole.to, hover: null, pin: null, by: "step", isolated: new Set(),
    found: new Set(), foundList: [], foundAt: -1, isCritical: false, hasArrows: true, memoryView: 0,
  };
  const panels = [];
  let isAsked = false;

  // Data by lane, for finding what is under the pointer and what is in sight.
  function prepared(view) {
    const index = new Map(view.op.map((op, at) => [op, at]));
    const lanes = scene.streams.map(() => []);
    view.op.forEach((_, at) => lanes[view.stream[at]].push(at));
    const rows = lanes.map((own) => {
      own.sort((one, two) => view.start[one] - view.start[two]);
      return stacked(view, own);
    });
    return { ...view, index, rows, criticalOps: new Set(view.critical) };
  }

  // Ops of one stream overlap where only true edges order them: they are stacked. An overlap of a
  // microsecond or two is the clock's.
  function stacked(view, own) {
    const found = [];
    for (const at of own) {
      const least = view.start[at] + Math.min(2, 0.25 * (view.stop[at] - view.start[at])) + 1e-4;
      let row = found.find((each) => view.stop[each[each.length - 1]] <= least);
      if (!row && found.length === 4) row = found[3];
      if (!row) { row = []; found.push(row); }
      row.push(at);
    }
    return found.length ? found : [[]];
  }

  function hueOf(op) {
    if (state.by === "phase") return ops.phase[op] < 0 ? "#c4c9d4" : scene.phaseFills[ops.phase[op]];
    return scene.hues[ops.hue[op]].fill;
  }

  // Hues come again after a while: then a dark rim tells two of them apart.
  function rimOf(op) {
    const rim = state.by === "phase" ? null : scene.hues[ops.hue[op]].rim;
    return rim === "#ffffff" ? null : rim;
  }

  function groupOf(op) {
    return state.by === "phase" ? ops.phase[op] : ops.hue[op];
  }

  function isDim(view, op) {
    if (state.found.size) return !state.found.has(op);
    if (state.isCritical && view.critical.length) return !view.criticalOps.has(op);
    return state.isolated.size > 0 && !state.isolated.has(groupOf(op));
  }

  function x(time, width) {
    return GUTTER + ((time - state.from) / (state.to - state.from)) * (width - GUTTER);
  }

  function timeAt(px, width) {
    return state.from + ((px - GUTTER) / (width - GUTTER)) * (state.to - state.from);
  }

  function draw() {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => { isAsked = false; panels.forEach((each) => each.draw()); });
  }

  function move(from, to) {
    const span = Math.min(Math.max(to - from, FEWEST_US), whole.to - whole.from);
    const middle = (from + to) / 2;
    state.from = Math.min(Math.max(middle - span / 2, whole.from), whole.to - span);
    state.to = state.from + span;
    draw();
  }

  function zoom(factor, at = (state.from + state.to) / 2) {
    move(at - (at - state.from) * factor, at + (state.to - at) * factor);
  }

  function pan(share) {
    const by = share * (state.to - state.from);
    move(state.from + by, state.to + by);
  }

  // A canvas that is as sharp as the screen and follows the width of the page.
  function surface(canvas, height) {
    const context = canvas.getContext("2d");
    return () => {
      const width = canvas.clientWidth, scale = devicePixelRatio || 1, tall = height();
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(tall * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(tall * scale);
        canvas.style.height = `${tall}px`;
      }
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, tall);
      context.textBaseline = "middle";
      return { context, width, height: tall };
    };
  }

  const font = (size, weight = 400) => `${weight} ${size}px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif`;

  function axis(context, width, height, isLabelled) {
    const step = tickUs((width - GUTTER) / (state.to - state.from));
    context.font = font(11);
    context.textAlign = "center";
    for (let time = Math.ceil(state.from / step) * step; time <= state.to; time += step) {
      const at = x(time, width);
      if (at < GUTTER) continue;
      context.fillStyle = colour("grid");
      context.fillRect(Math.round(at), isLabelled ? TOP - 4 : 0, 1, height);
      if (!isLabelled) continue;
      context.fillStyle = colour("faint");
      const text = tickText(time, step), half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(at, width - half - 6), 11);
    }
  }

  function tickUs(pxPerUs) {
    let power = 10 ** Math.floor(Math.log10(90 / pxPerUs));
    for (const factor of [1, 2, 5, 10]) if (factor * power * pxPerUs >= 90) return factor * power;
    return 10 * power;
  }

  function tickText(time, step) {
    if (Math.abs(time) < step / 2) return "0";
    const isMs = state.to >= 10000 && step >= 10;
    const value = isMs ? time / 1000 : time, size = isMs ? step / 1000 : step;
    const digits = Math.max(0, Math.min(4, -Math.floor(Math.log10(size))));
    return `${value.toFixed(digits)} ${isMs ? "ms" : "us"}`;
  }

  // The first of an ordered row that ends after a time.
  function firstAfter(view, row, time) {
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (view.stop[row[middle]] < time) low = middle + 1; else high = middle;
    }
    return low;
  }

  function clipped(text, width, context) {
    if (context.measureText(text).width <= width) return text;
    return "";
  }

  function labelOf(op, width, context) {
    const hue = scene.hues[ops.hue[op]].name, short = hue.slice(hue.lastIndexOf("/") + 1);
    const piece = ops.piece[op] >= 0 ? ` ${ops.piece[op]}` : "";
    for (const wish of [hue + piece, short + piece, piece.trim()]) {
      if (wish && clipped(wish, width - 6, context)) return wish;
    }
    return "";
  }

  function hatch(context) {
    if (!hatch.tile) {
      hatch.tile = document.createElement("canvas");
      hatch.tile.width = hatch.tile.height = 6;
      const pen = hatch.tile.getContext("2d");
      pen.strokeStyle = "rgba(255,255,255,.62)";
      pen.lineWidth = 1.6;
      for (const by of [-6, 0, 6]) { pen.beginPath(); pen.moveTo(by, 6); pen.lineTo(by + 6, 0); pen.stroke(); }
    }
    return context.createPattern(hatch.tile, "repeat");
  }

  // One view: its lanes, and what is under a point of them.
  function lanePanel(view, viewAt) {
    const tops = [];
    let height = TOP;
    for (const device of scene.devices) {
      const own = scene.streams.map((_, at) => at).filter((at) => scene.streams[at].device === device);
      if (!own.length) continue;
      tops.push({ device, top: height, bottom: 0 });
      height += BAND;
      for (const at of own) {
        tops.push({ stream: at, top: height });
        height += LANE * view.rows[at].length;
      }
      tops.filter((each) => each.device === device)[0].bottom = height + 4;
      height += GAP + 4;
    }
    const laneTop = new Map(tops.filter((each) => each.stream !== undefined).map((each) => [each.stream, each.top]));
    const rowOf = new Map();
    view.rows.forEach((rows) => rows.forEach((row, number) => row.forEach((at) => rowOf.set(at, number))));
    const canvas = make("canvas", { class: "plot", tabindex: "0", "data-view": view.label, "aria-label": `Timeline, ${view.label}` });
    const sized = surface(canvas, () => height);

    function boxTop(at) {
      return laneTop.get(view.stream[at]) + rowOf.get(at) * LANE + (LANE - BOX) / 2;
    }

    function box(at, width) {
      const left = x(view.start[at], width), right = x(view.stop[at], width);
      return { left, top: boxTop(at), width: Math.max(1, right - left), height: BOX };
    }

    function paint() {
      const { context, width } = sized();
      const ink = colour("ink"), soft = colour("soft");
      for (const each of tops) {
        if (each.device === undefined) continue;
        context.fillStyle = colour("band");
        context.beginPath();
        context.roundRect(8, each.top, width - 16, each.bottom - each.top, 8);
        context.fill();
      }
      axis(context, width, height - TOP, true);
      for (const each of tops) {
        context.textAlign = "left";
        if (each.device !== undefined) {
          context.font = font(12, 650);
          context.fillStyle = ink;
          context.fillText(each.device, 18, each.top + BAND / 2 + 1);
          continue;
        }
        const stream = scene.streams[each.stream];
        context.font = font(11.5);
        context.fillStyle = soft;
        context.fillText(shortened(stream.label, GUTTER - 34, context) + (stream.isOrigin ? " ◦" : ""), 22, each.top + LANE / 2);
        context.fillStyle = colour("lane");
        context.fillRect(GUTTER, each.top + LANE / 2, width - GUTTER, 1);
      }
      context.save();
      context.beginPath();
      context.rect(GUTTER, 0, width - GUTTER, height);
      context.clip();
      const stop = x(view.stopUs, width);
      context.strokeStyle = colour("faint");
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(stop, TOP - 6);
      context.lineTo(stop, height - 6);
      context.stroke();
      context.setLineDash([]);
      const seen = [];
      view.rows.forEach((rows) => rows.forEach((row) => paintRow(context, row, width, seen)));
      panel.drawn = seen.length;
      if (state.hasArrows && seen.length <= MANY_ARROWS) seen.forEach((at) => paintArrows(context, at, width, false));
      const focus = state.hover && state.hover.view === view ? state.hover.op : state.pin;
      if (focus !== null && focus !== undefined && view.index.has(focus)) paintFocus(context, view.index.get(focus), width);
      context.restore();
    }

    function paintRow(context, row, width, seen) {
      const wait = colour("wait"), paper = colour("card");
      let lastPixel = -1;
      for (let at = firstAfter(view, row, state.from); at < row.length; at += 1) {
        const slice = row[at], op = view.op[slice];
        const { left, top, width: wide } = box(slice, width);
        if (left > width) break;
        if (wide <= 1.2 && Math.floor(left) === lastPixel) continue;
        lastPixel = Math.floor(left + wide);
        seen.push(slice);
        const ready = x(view.ready[slice], width);
        if (left - ready > 1.5) {
          context.globalAlpha = isDim(view, op) ? 0.1 : at === 0 ? 0.22 : 0.5;
          context.fillStyle = wait;
          context.fillRect(ready, top + BOX / 2 - 1, left - ready, 2);
        }
        context.globalAlpha = isDim(view, op) ? 0.14 : 1;
        context.fillStyle = hueOf(op);
        context.beginPath();
        if (wide > 5) context.roundRect(left, top, wide, BOX, 3); else context.rect(left, top, wide, BOX);
        context.fill();
        if (ops.isCopy[op] && wide > 3) { context.fillStyle = hatch(context); context.fill(); }
        if (wide > 3) { context.strokeStyle = rimOf(op) || paper; context.lineWidth = rimOf(op) ? 1.4 : 1; context.stroke(); }
        if (view.criticalOps.has(op)) {
          context.fillStyle = wait;
          context.fillRect(left, top + BOX - 2, wide, 2);
        }
        if (wide > 16) {
          context.font = font(11);
          context.textAlign = "center";
          context.fillStyle = "#1c2230";
          const visible = Math.min(left + wide, width) - Math.max(left, GUTTER);
          const label = labelOf(op, Math.min(wide, visible), context);
          if (label) context.fillText(label, (Math.max(left, GUTTER) + Math.min(left + wide, width)) / 2, top + BOX / 2 + 0.5);
        }
        context.globalAlpha = 1;
      }
    }

    // Pale: a wait that was met already. Dark: the wait that decided when the op starts.
    function paintArrows(context, at, width, isFocus) {
      view.waits[at].forEach((op, order) => {
        const before = view.index.get(op);
        if (before === undefined) return;
        const isBinding = order === 0 && view.stop[before] > view.ready[at] + 1e-6;
        if (!isFocus && !isBinding) return;
        const one = box(before, width), two = box(at, width), isDown = two.top > one.top;
        const fromX = one.left + one.width, fromY = one.top + (isDown ? BOX : 0);
        const toX = two.left + 1, toY = two.top + (isDown ? -1 : BOX + 1);
        const bend = (toY - fromY) * 0.5;
        context.globalAlpha = isFocus ? 1 : isDim(view, view.op[at]) ? 0.08 : 0.4;
        context.strokeStyle = context.fillStyle = isFocus ? (isBinding ? colour("wait") : colour("accent")) : colour("soft");
        context.lineWidth = isFocus && isBinding ? 2 : 1;
        context.beginPath();
        context.moveTo(fromX, fromY);
        context.bezierCurveTo(fromX, fromY + bend, toX, toY - bend, toX, toY);
        context.stroke();
        const tipY = isDown ? -5 : 5;
        context.beginPath();
        context.moveTo(toX, toY);
        context.lineTo(toX - 3, toY + tipY);
        context.lineTo(toX + 3, toY + tipY);
        context.fill();
        context.globalAlpha = 1;
      });
    }

    function paintFocus(context, at, width) {
      const outline = (slice, look, by) => {
        const { left, top, width: wide } = box(slice, width);
        context.strokeStyle = look;
        context.lineWidth = by;
        context.beginPath();
        context.roundRect(left - 1.5, top - 1.5, wide + 3, BOX + 3, 4);
        context.stroke();
      };
      paintArrows(context, at, width, true);
      view.waits[at].forEach((op, order) => {
        const before = view.index.get(op);
        if (before === undefined) return;
        const isBinding = order === 0 && view.stop[before] > view.ready[at] + 1e-6;
        outline(before, isBinding ? colour("wait") : colour("accent"), isBinding ? 2.5 : 1.5);
      });
      outline(at, colour("ink"), 2.5);
    }

    function under(px, py, width) {
      for (const each of tops) {
        if (each.stream === undefined || py < each.top) continue;
        const rows = view.rows[each.stream];
        const number = Math.floor((py - each.top) / LANE);
        if (number >= rows.length) continue;
        const row = rows[number], time = timeAt(px, width), near = 3 * (state.to - state.from) / width;
        for (let at = Math.max(0, firstAfter(view, row, time - near)); at < row.length; at += 1) {
          const slice = row[at];
          if (view.start[slice] > time + near) break;
          const { left, width: wide } = box(slice, width);
          if (px >= left - 2 && px <= left + wide + 2) return { view, op: view.op[slice] };
        }
      }
      return null;
    }

    function waitUnder(px, py, width) {
      for (const each of tops) {
        if (each.stream === undefined || py < each.top) continue;
        const rows = view.rows[each.stream], number = Math.floor((py - each.top) / LANE);
        if (number >= rows.length || px < GUTTER) continue;
        const time = timeAt(px, width), at = firstAfter(view, rows[number], time);
        const slice = rows[number][at];
        if (slice !== undefined && view.ready[slice] <= time && time < view.start[slice]) return { view, op: view.op[slice], isWait: true };
      }
      return null;
    }

    const panel = { canvas, draw: paint, drawn: 0, box: (op) => (view.index.has(op) ? box(view.index.get(op), canvas.clientWidth) : null) };
    listen(canvas, (px, py) => under(px, py, canvas.clientWidth) || waitUnder(px, py, canvas.clientWidth));
    panel.view = view;
    panel.element = make("div", {},
      make("div", { class: "title" }, make("h2", {}, view.label), make("small", {}, view.basis)), canvas);
    return panel;
  }

  function shortened(text, width, context) {
    if (context.measureText(text).width <= width) return text;
    let length = text.length;
    while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
    return `${text.slice(0, length)}…`;
  }

  // Wheel, drag, hover and click of a plot.
  function listen(canvas, find) {
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      if (event.offsetX < GUTTER) return;
      event.preventDefault();
      hideTip();
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (isSideways) pan((event.deltaX || event.deltaY) / 900);
      else zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0028), timeAt(event.offsetX, canvas.clientWidth));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, from: state.from, to: state.to, isMoved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const by = (event.clientX - drag.x) / (canvas.clientWidth - GUTTER) * (drag.to - drag.from);
        if (Math.abs(event.clientX - drag.x) > 3) { drag.isMoved = true; canvas.classList.add("is-dragged"); hideTip(); }
        if (drag.isMoved) move(drag.from - by, drag.to - by);
        return;
      }
      const found = find(event.offsetX, event.offsetY);
      canvas.classList.toggle("is-over", found !== null);
      const isSame = state.hover && found && state.hover.op === found.op && state.hover.view === found.view;
      state.hover = found;
      if (found && found.buffer) showTip(event, ...bufferTip(found));
      else if (found) showTip(event, ...opTip(found));
      else hideTip();
      if (!isSame) draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const isClick = drag && !drag.isMoved;
      drag = null;
      canvas.classList.remove("is-dragged");
      if (!isClick) return;
      const found = find(event.offsetX, event.offsetY);
      pin(found && found.op !== undefined ? found.op : null, found ? found.view : null);
    });
    canvas.addEventListener("pointerleave", () => { state.hover = null; hideTip(); draw(); });
  }

  // What a hover and the card on the right say of an op.
  function whyOf(view, op) {
    const at = view.index.get(op);
    if (at === undefined) return null;
    const waited = view.start[at] - view.ready[at];
    const [first] = view.waits[at];
    const before = first === undefined ? undefined : view.index.get(first);
    const isBound = before !== undefined && view.stop[before] > view.ready[at] + 1e-6;
    return { at, waited, binding: isBound ? first : null, late: isBound ? Math.max(0, view.start[at] - view.stop[before]) : waited };
  }

  function whyText(view, op) {
    const why = whyOf(view, op);
    if (!why || why.waited < 0.05) return null;
    if (why.binding === null) return `${us(why.waited)}, nothing of the plan held it up: launch latency, or its engine was busy`;
    const late = why.late >= 0.05 ? `, then ${us(why.late)} of latency` : "";
    return `${us(Math.max(0, why.waited - why.late))} for ${ops.name[why.binding]}${late}`;
  }

  function times(view, op) {
    const at = view.index.get(op);
    if (at === undefined) return null;
    return `${us(view.stop[at] - view.start[at])}  (${us(view.start[at])} to ${us(view.stop[at])})`;
  }

  function pieceText(op) {
    return ops.piece[op] < 0 ? null : `${ops.piece[op]} of ${ops.of[op]}`;
  }

  function opTip({ view, op, isWait }) {
    const at = view.index.get(op);
    const dependencies = view.waits[at].map((each) => ops.name[each]);
    return [
      make("div", { class: "name" }, isWait ? `idle, before ${ops.name[op]}` : ops.name[op]),
      make("div", { class: "what" }, scene.works[ops.work[op]]),
      facts([
        ["time", times(view, op)],
        ["waited", whyText(view, op), "why"],
        ["piece", pieceText(op)],
        ["regions", ops.accesses[op].map((each) => scene.accesses[each]).join("\n")],
        ["waits for", dependencies.slice(0, 6).join("\n") + (dependencies.length > 6 ? `\n… ${dependencies.length} in all` : "")],
      ]),
    ].map((each) => { each.style.whiteSpace = "pre-line"; return each; });
  }

  const detail = make("aside", { class: "card detail", hidden: true, "aria-label": "The pinned op" });

  function opLink(op, look) {
    return make("li", { class: look || null }, make("button", { class: "link", type: "button", onclick: () => { pin(op); reveal(op); } }, ops.name[op]));
  }

  function pin(op, view = null) {
    state.pin = op;
    hideTip();
    detail.hidden = op === null;
    studio.classList.toggle("has-detail", op !== null);
    if (op !== null) detail.replaceChildren(...detailOf(op, view));
    draw();
  }

  function detailOf(op, chosen) {
    const seen = views.filter((view) => view.index.has(op));
    const view = chosen && chosen.index.has(op) ? chosen : seen[0];
    const after = followers(op);
    const list = (title, items) => (items.length ? [make("div", { class: "section" }, title), make("ul", { class: "list" }, ...items)] : []);
    const why = view ? whyOf(view, op) : null;
    const waits = view ? view.waits[view.index.get(op)] : [];
    return [
      make("div", { class: "head" }, make("h2", {}, "Op"), make("span", { class: "grow" }), make("button", { class: "button", type: "button", onclick: () => reveal(op) }, "Show"), make("button", { class: "button", type: "button", onclick: () => pin(null) }, "Close")),
      make("div", { class: "body" },
        make("div", { class: "name" }, ops.name[op]),
        make("div", { class: "what" }, scene.works[ops.work[op]]),
        facts([
          ["step", scene.steps[ops.step[op]]],
          ["piece", pieceText(op)],
          ["phase", ops.phase[op] < 0 ? null : scene.phases[ops.phase[op]]],
          ["device", ops.device[op]],
          ["stream", view ? scene.streams[view.stream[view.index.get(op)]].name : null],
          ["engine", view ? view.engines[view.engine[view.index.get(op)]] : null],
          ...seen.map((each) => [each.label, times(each, op)]),
          ...seen.map((each) => [seen.length > 1 ? `waited, ${each.label}` : "waited", whyText(each, op), "why"]),
        ]),
        ...list("Regions", ops.accesses[op].map((each) => make("li", {}, make("code", {}, scene.accesses[each])))),
        ...list("Waits for", waits.map((each, at) => opLink(each, at === 0 && why && why.binding !== null ? "binding" : null))),
        ...list("Depends on", ops.before[op].filter((each) => !waits.includes(each)).map((each) => opLink(each))),
        ...list("Followed by", after.map((each) => opLink(each)))),
    ];
  }

  let afterOf = null;
  function followers(op) {
    if (!afterOf) {
      afterOf = ops.name.map(() => []);
      ops.before.forEach((all, at) => all.forEach((each) => afterOf[each].push(at)));
    }
    return afterOf[op];
  }

  // Bring an op into sight, with some of what is around it.
  function reveal(op) {
    const view = views.find((each) => each.index.has(op));
    if (!view) return;
    const at = view.index.get(op), middle = (view.start[at] + view.stop[at]) / 2;
    const [first] = view.waits[at].map((each) => view.index.get(each)).filter((each) => each !== undefined);
    const least = Math.max((view.stop[at] - view.start[at]) * 8, (whole.to - whole.from) / 200);
    const reach = first === undefined ? 0 : 2.4 * Math.abs(middle - view.start[first]);
    const span = Math.min(Math.max(least, reach), state.to - state.from);
    move(middle - span / 2, middle + span / 2);
  }

  // Which buffers live in the arenas: time against address.
  function memoryPanel() {
    const arenas = scene.arenas.map((arena) => ({ ...arena, tall: Math.max(44, Math.min(150, 22 * Math.log2(1 + arena.nbytes / 65536))) }));
    let height = 8;
    for (const arena of arenas) { arena.top = height; height += arena.tall + 18 + ARENA_GAP; }
    const canvas = make("canvas", { class: "plot", tabindex: "0", "data-view": "memory", "aria-label": "Memory over time" });
    const sized = surface(canvas, () => height);
    const lives = new Map();

    function livesOf(view) {
      if (!lives.has(view)) {
        lives.set(view, arenas.map((arena) => {
          const found = arena.buffers.map((buffer) => {
            let born = Infinity, dead = -Infinity, first = null, last = null;
            for (const op of buffer.ops) {
              const at = view.index.get(op);
              if (at === undefined) continue;
              if (view.start[at] < born) { born = view.start[at]; first = op; }
              if (view.stop[at] > dead) { dead = view.stop[at]; last = op; }
            }
            return { ...buffer, born, dead, first, last };
          }).filter((each) => each.dead >= each.born);
          return { arena, buffers: found, ...peakOf(found) };
        }));
      }
      return lives.get(view);
    }

    function peakOf(buffers) {
      const changes = buffers.flatMap((each) => [[each.born, each.nbytes], [each.dead, -each.nbytes]]);
      changes.sort((one, two) => one[0] - two[0] || one[1] - two[1]);
      let now = 0, peak = 0;
      for (const [, by] of changes) { now += by; peak = Math.max(peak, now); }
      return { peak };
    }

    function rect(arena, buffer, width) {
      const left = x(buffer.born, width), scale = arena.tall / arena.nbytes;
      return {
        left, width: Math.max(1, x(buffer.dead, width) - left),
        top: arena.top + 18 + buffer.offset * scale, height: Math.max(1, buffer.nbytes * scale),
      };
    }

    function paint() {
      const { context, width } = sized();
      const view = views[state.memoryView];
      axis(context, width, height, false);
      livesOf(view).forEach(({ arena, buffers, peak }) => {
        context.font = font(12, 650);
        context.textAlign = "left";
        context.fillStyle = colour("ink");
        context.fillText(shortened(arena.name, 300, context), 18, arena.top + 8);
        const named = context.measureText(arena.name).width;
        context.font = font(11.5);
        context.fillStyle = colour("soft");
        context.fillText(`${bytes(arena.nbytes)}, at most ${bytes(peak)} live`, 28 + named, arena.top + 8);
        context.fillStyle = colour("band");
        context.fillRect(GUTTER, arena.top + 18, width - GUTTER - 8, arena.tall);
        context.save();
        context.beginPath();
        context.rect(GUTTER, arena.top + 18, width - GUTTER - 8, arena.tall);
        context.clip();
        buffers.forEach((buffer) => {
          const area = rect(arena, buffer, width);
          if (area.left > width || area.left + area.width < GUTTER) return;
          const isFocus = state.hover && state.hover.buffer && state.hover.buffer.name === buffer.name;
          const isUsed = state.pin !== null && buffer.ops.includes(state.pin);
          context.fillStyle = scene.bufferFills[hash(buffer.name.slice(buffer.name.lastIndexOf("/") + 1)) % scene.bufferFills.length];
          context.globalAlpha = isFocus || isUsed ? 1 : 0.72;
          context.fillRect(area.left, area.top, area.width, area.height);
          context.globalAlpha = 1;
          context.strokeStyle = isFocus || isUsed ? colour("ink") : colour("card");
          context.lineWidth = isFocus || isUsed ? 2 : 0.8;
          if (area.width > 2 && area.height > 2) context.strokeRect(area.left, area.top, area.width, area.height);
          context.font = font(11);
          if (area.height >= 13) {
            const from = Math.max(area.left, GUTTER), room = Math.min(area.left + area.width, width - 8) - from - 8;
            const label = room > 14 ? clipped(buffer.name, room, context) || clipped(buffer.name.slice(buffer.name.lastIndexOf("/") + 1), room, context) : "";
            context.fillStyle = "#1c2230";
            context.textAlign = "left";
            if (label) context.fillText(label, from + 5, area.top + area.height / 2);
          }
        });
        context.restore();
      });
    }

    function under(px, py) {
      const width = canvas.clientWidth, view = views[state.memoryView];
      for (const { arena, buffers } of livesOf(view)) {
        for (let at = buffers.length - 1; at >= 0; at -= 1) {
          const area = rect(arena, buffers[at], width);
          if (px >= Math.max(GUTTER, area.left) && px <= area.left + area.width && py >= area.top && py <= area.top + area.height) {
            return { view, buffer: buffers[at], arena };
          }
        }
      }
      return null;
    }

    listen(canvas, under);
    return { canvas, draw: paint, element: canvas, rect: (name) => {
      for (const { arena, buffers } of livesOf(views[state.memoryView])) {
        const found = buffers.find((each) => each.name === name);
        if (found) return rect(arena, found, canvas.clientWidth);
      }
      return null;
    } };
  }

  function hash(text) {
    let found = 7;
    for (let at = 0; at < text.length; at += 1) found = (found * 31 + text.charCodeAt(at)) >>> 0;
    return found;
  }

  function bufferTip({ buffer, arena }) {
    return [
      make("div", { class: "name" }, buffer.name),
      make("div", { class: "what" }, `${buffer.shape}, ${bytes(buffer.nbytes)}`),
      facts([
        ["where", `${arena.name} + ${buffer.offset.toLocaleString("en")}`],
        ["lives", `${us(buffer.born)} to ${us(buffer.dead)}  (${us(buffer.dead - buffer.born)})`],
        ["first", ops.name[buffer.first]],
        ["last", ops.name[buffer.last]],
      ]),
    ];
  }

  // The whole at a glance, with what is in sight as a window.
  function mapPanel() {
    const canvas = make("canvas", { class: "map", "aria-label": "Overview: drag to move what is in sight" });
    const sized = surface(canvas, () => MAP);
    const scale = (time, width) => GUTTER + ((time - whole.from) / (whole.to - whole.from)) * (width - GUTTER);

    function paint() {
      const { context, width } = sized();
      const view = views[0], lanes = Math.max(1, scene.streams.length), tall = Math.max(1, (MAP - 10) / lanes);
      context.globalAlpha = 0.85;
      let last = new Int32Array(lanes).fill(-1);
      view.rows.forEach((rows, lane) => rows.forEach((row) => row.forEach((at) => {
        const left = scale(view.start[at], width), wide = Math.max(1, scale(view.stop[at], width) - left);
        if (wide <= 1 && Math.floor(left) === last[lane]) return;
        last[lane] = Math.floor(left);
        context.fillStyle = hueOf(view.op[at]);
        context.fillRect(left, 5 + lane * tall, wide, Math.max(1, tall - 0.6));
      })));
      context.globalAlpha = 1;
      const from = scale(state.from, width), to = scale(state.to, width);
      context.fillStyle = colour("page");
      context.globalAlpha = 0.72;
      context.fillRect(GUTTER, 0, from - GUTTER, MAP);
      context.fillRect(to, 0, width - to, MAP);
      context.globalAlpha = 1;
      context.strokeStyle = colour("accent");
      context.lineWidth = 1.5;
      context.strokeRect(from + 0.75, 0.75, Math.max(3, to - from - 1.5), MAP - 1.5);
      context.font = font(11);
      context.textAlign = "left";
      context.fillStyle = colour("soft");
      context.fillText("overview", 18, MAP / 2);
    }

    function go(event) {
      const time = whole.from + ((event.offsetX - GUTTER) / (canvas.clientWidth - GUTTER)) * (whole.to - whole.from);
      const half = (state.to - state.from) / 2;
      move(time - half, time + half);
    }
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); go(event); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.0028)); }, { passive: false });
    return { canvas, draw: paint };
  }

  // Search by name: what is found stands out, Enter goes from one to the next.
  function startSearch() {
    const area = document.getElementById("search"), box = area.querySelector("input"), said = area.querySelector("output");
    area.hidden = false;
    const say = () => {
      const count = state.foundList.length;
      said.textContent = !box.value ? "" : !count ? "none" : state.foundAt < 0 ? `${count} ops` : `${state.foundAt + 1} of ${count}`;
    };
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      state.foundList = words.length ? ops.name.map((_, at) => at).filter((at) => words.every((word) => ops.name[at].toLowerCase().includes(word))) : [];
      state.found = new Set(words.length ? state.foundList : []);
      if (words.length && !state.foundList.length) state.found = new Set([-1]);
      state.foundAt = -1;
      say();
      draw();
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { box.value = ""; box.dispatchEvent(new Event("input")); box.blur(); }
      if (event.key !== "Enter" || !state.foundList.length) return;
      const count = state.foundList.length;
      state.foundAt = (state.foundAt + (event.shiftKey ? count - 1 : 1) + (event.shiftKey && state.foundAt < 0 ? 1 : 0)) % count;
      const op = state.foundList[state.foundAt];
      pin(op);
      reveal(op);
      say();
    });
    return box;
  }

  function startKeys(box) {
    document.addEventListener("keydown", (event) => {
      if (event.target instanceof Element && event.target.matches("input, select, textarea")) return;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = event.shiftKey ? 0.5 : 0.12;
      const actions = {
        "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), w: () => zoom(0.7), s: () => zoom(1 / 0.7),
        ArrowLeft: () => pan(-step), ArrowRight: () => pan(step), a: () => pan(-step), d: () => pan(step),
        0: () => move(whole.from, whole.to), f: () => (state.pin === null ? move(whole.from, whole.to) : reveal(state.pin)),
        "/": () => box.focus(), Escape: () => pin(null), n: () => neighbour(1), p: () => neighbour(-1),
      };
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    });
  }

  // The next op on the stream of the pinned one, or the one before.
  function neighbour(by) {
    const view = views.find((each) => each.index.has(state.pin));
    if (!view) return;
    const at = view.index.get(state.pin);
    const row = view.rows[view.stream[at]].find((each) => each.includes(at));
    const next = row[row.indexOf(at) + by];
    if (next === undefined) return;
    pin(view.op[next], view);
    if (view.start[next] < state.from || view.stop[next] > state.to) reveal(view.op[next]);
  }

  const legend = make("div", { class: "legend" });

  function fillLegend() {
    const isPhase = state.by === "phase";
    const counts = new Map();
    ops.name.forEach((_, op) => counts.set(groupOf(op), (counts.get(groupOf(op)) || 0) + 1));
    const copies = new Set(ops.name.map((_, op) => op).filter((op) => ops.isCopy[op]).map(groupOf));
    const keys = isPhase ? [...scene.phases.map((name, at) => [at, name, scene.phaseFills[at]]), [-1, "no phase", "#c4c9d4"]]
      : scene.hues.map((each, at) => [at, each.name, each.fill, each.rim === "#ffffff" ? null : each.rim]);
    legend.replaceChildren(...keys.filter(([key]) => counts.has(key)).map(([key, name, fill, rim]) => make("button", {
      class: "chip", type: "button", "aria-pressed": String(state.isolated.has(key)), title: `${counts.get(key)} ops: click to see these alone`,
      onclick: () => {
        if (!state.isolated.delete(key)) state.isolated.add(key);
        fillLegend();
        draw();
      },
    }, make("i", { style: `background-color:${fill}${rim ? `;box-shadow:inset 0 0 0 1.5px ${rim}` : ""}`, class: !isPhase && copies.has(key) ? "is-hatched" : null }), name)));
  }

  function toggle(name, isOn, act) {
    const button = make("button", { class: "button", type: "button", "aria-pressed": String(isOn) }, name);
    button.addEventListener("click", () => {
      const isNow = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(isNow));
      act(isNow);
      draw();
    });
    return button;
  }

  function action(name, act, title) {
    return make("button", { class: "button", type: "button", title, onclick: act }, name);
  }

  const studio = make("div", { class: "studio" });
  const map = mapPanel();
  panels.push(map, ...views.map(lanePanel));
  const tools = make("div", { class: "tools" },
    action("−", () => zoom(1 / 0.6), "Zoom out ( - )"), action("+", () => zoom(0.6), "Zoom in ( + )"), action("Fit", () => move(whole.from, whole.to), "Everything ( 0 )"));
  if (scene.phases.length) {
    const select = make("select", { "aria-label": "Colours", onchange: (event) => { state.by = event.target.value; state.isolated.clear(); fillLegend(); draw(); } },
      make("option", { value: "step" }, "Colours: steps"), make("option", { value: "phase" }, "Colours: phases"));
    tools.append(select);
  }
  tools.append(toggle("Waits", true, (isOn) => { state.hasArrows = isOn; }));
  if (views.some((view) => view.critical.length)) tools.append(toggle("Critical path", false, (isOn) => { state.isCritical = isOn; }));
  const hint = make("span", { class: "hint" }, "wheel: zoom · drag: pan · click: pin · ",
    make("kbd", {}, "/"), " find · ", make("kbd", {}, "0"), " fit");
  const card = make("section", { class: "card", "aria-label": "Timeline" },
    make("div", { class: "head" }, make("h2", {}, views.length > 1 ? "Timelines" : "Timeline"), hint, make("span", { class: "grow" }), tools), map.canvas,
    ...panels.filter((each) => each.element).map((each) => each.element), legend, marks());
  const left = make("div", {}, card);
  if (scene.arenas.length) left.append(memoryCard());
  studio.append(left, detail);
  host.append(studio);

  function marks() {
    const mark = (svg, text) => { const span = make("span"); span.innerHTML = svg; span.append(text); return span; };
    const line = (look) => `<svg width="26" height="10" aria-hidden="true">${look}</svg>`;
    const found = [
      mark(line('<rect y="4" width="26" height="2" fill="var(--wait)" opacity=".5"/>'), "stream idle, waiting"),
      mark(line('<path d="M1 5H24" stroke="var(--soft)"/><path d="M25 5l-6-3v6z" fill="var(--soft)"/>'), "the wait that decided the start"),
      mark(line('<rect x="4" width="18" height="10" rx="3" fill="#9aa3b5"/><path d="M6 10l8-10M12 10l8-10" stroke="#fff" stroke-width="1.6" opacity=".7"/>'), "copy engine"),
    ];
    if (views.some((view) => view.critical.length)) found.push(mark(line('<rect x="4" width="18" height="10" rx="2" fill="#c4c9d4"/><rect x="4" y="8" width="18" height="2" fill="var(--wait)"/>'), "on the critical path"));
    return make("div", { class: "marks" }, ...found);
  }

  function memoryCard() {
    const memory = memoryPanel();
    panels.push(memory);
    const head = make("div", { class: "head" }, make("h2", {}, "Memory"), make("span", { class: "hint" }, "scratch buffers in their arenas: time against address"), make("span", { class: "grow" }));
    if (views.length > 1) {
      head.append(make("div", { class: "tools" }, make("select", { "aria-label": "Whose times", onchange: (event) => { state.memoryView = Number(event.target.value); draw(); } },
        ...views.map((view, at) => make("option", { value: at }, view.label)))));
    }
    const found = make("section", { class: "card", "aria-label": "Memory" }, head, memory.canvas);
    found.memory = memory;
    startLanes.memory = memory;
    return found;
  }

  fillLegend();
  startKeys(startSearch());
  themeListeners.push(draw);
  new ResizeObserver(draw).observe(card);
  const tables = make("div", { class: "tables" });
  views.forEach((view) => view.tables.forEach((table) => {
    const isOps = table.columns[0].name === "op";
    const numbers = isOps ? new Map(ops.name.map((name, at) => [name, at])) : null;
    const told = views.length > 1 ? { ...table, note: [view.label, table.note].filter(Boolean).join(" · ") } : table;
    tables.append(tableCard(told, {
      isWide: isOps, isFiltered: isOps,
      onRow: isOps ? (cells) => { const op = numbers.get(cells[0]); if (op !== undefined) { pin(op, view); reveal(op); scrollTo({ top: 0, behavior: "smooth" }); } } : null,
    }));
  }));
  if (tables.children.length) host.append(tables);
  draw();

  // For scripts and tests: where things are drawn now.
  window.graphcPage = {
    state,
    rectOf: (name, viewAt = 0) => {
      const panel = panels.filter((each) => each.view)[viewAt], area = panel.box(ops.name.indexOf(name));
      if (!area) return null;
      const at = panel.canvas.getBoundingClientRect();
      return { left: at.left + area.left, top: at.top + area.top, width: area.width, height: area.height };
    },
    bufferRect: (name) => {
      const area = startLanes.memory.rect(name), at = startLanes.memory.canvas.getBoundingClientRect();
      return area && { left: at.left + area.left, top: at.top + area.top, width: area.width, height: area.height };
    },
    drawn: () => panels.filter((each) => each.view).map((each) => each.drawn),
    pinned: () => (state.pin === null ? null : ops.name[state.pin]),
  };
}
