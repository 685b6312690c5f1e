"use strict";

// The page of goen serve. Text from images and files enters it as text nodes and properties only.
{
  const AT_ONCE = 4;
  const TRIES = 20;
  const EVERY = 2000;
  const CLASSES = 12; // named on the page
  const SMALL = 96; // pixels, of images that a browser would blur
  const byId = (id) => document.getElementById(id);
  const page = { gates: [], gate: null, limits: {}, token: "", cards: [], rate: 0, control: null };

  // -- the service --------------------------------------------------------------------------

  class Refused extends Error {
    constructor(status, message, retry) {
      super(message);
      Object.assign(this, { status, retry });
    }
  }

  async function ask(path, options = {}) {
    const headers = page.token ? { Authorization: `Bearer ${page.token}` } : {};
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, credentials: "omit" });
    } catch {
      throw new Refused(0, "The service does not answer. Is it running?", 0);
    }
    const content = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
    if (answer.ok) return content;
    throw new Refused(answer.status, content.error, Number(answer.headers.get("Retry-After")));
  }

  function show(problem) {
    byId("problem").textContent = problem;
    byId("problem").hidden = problem === "";
  }

  // -- images -----------------------------------------------------------------------------

  let sending = 0;
  const queue = [];

  function add(files) {
    for (const file of files) {
      const card = { file, name: file.name || "image", url: URL.createObjectURL(file) };
      page.cards.push(card);
      send(card);
    }
    draw();
  }

  function send(card) {
    card.row = null;
    card.error = "";
    card.waiting = true;
    if (card.file.size > page.limits.body) {
      const most = Math.floor(page.limits.body / 2 ** 20);
      Object.assign(card, { waiting: false, error: `Larger than ${most} MB, the most that is read.` });
      return;
    }
    queue.push(card);
    next();
  }

  async function next() {
    if (sending >= AT_ONCE || !queue.length) return;
    sending += 1;
    const card = queue.shift();
    const gate = page.gate;
    try {
      const row = await scored(card, gate);
      if (gate === page.gate) Object.assign(card, { row, waiting: false });
    } catch (error) {
      Object.assign(card, { error: error.message, waiting: false });
    }
    sending -= 1;
    draw();
    next();
  }

  async function scored(card, gate) {
    const path = `score/${encodeURIComponent(gate.name)}?seen=true`;
    const body = new FormData(); // an image that cannot be read is then a row with an error
    body.append("image", card.file, card.name);
    for (let tried = 1; ; tried += 1) {
      try {
        const [row] = await ask(path, { method: "POST", body });
        if (row.label === null) throw new Refused(200, row.error, 0);
        return row;
      } catch (error) {
        if (error.status !== 503 || tried === TRIES) throw error;
        await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retry || 1)));
      }
    }
  }

  // The same comparison of the same numbers as in Gate.predict.
  const isFlagged = (card) => card.row !== null && card.row.p_value <= page.rate;

  const ORDERS = {
    suspicious: (a, b) => a.row.p_value - b.row.p_value || score(b) - score(a),
    newest: () => 0,
    name: (a, b) => a.name.localeCompare(b.name),
    label: (a, b) => a.row.label.localeCompare(b.row.label),
    confidence: (a, b) => a.row.confidence - b.row.confidence,
  };
  // JSON has no infinity.
  const score = (card) => card.row.score ?? Infinity;

  function sorted() {
    const newest = [...page.cards].reverse();
    const order = ORDERS[byId("sort").value];
    const of = (test) => newest.filter(test);
    return [...of((c) => c.waiting), ...of((c) => c.row).sort(order), ...of((c) => c.error)];
  }

  // Cards that stay keep their elements: focus and images stay as they are.
  function draw() {
    const filled = page.cards.length > 0;
    document.body.classList.toggle("filled", filled);
    byId("controls").hidden = !filled;
    const list = byId("cards");
    list.classList.toggle("few", page.cards.length < 3);
    const focused = document.activeElement;
    for (const card of page.cards) {
      const state = `${card.waiting}${card.error}${card.row !== null}`;
      if (card.element && card.drawn === state) continue;
      const made = item(card);
      if (card.element?.contains(focused)) card.refocus = true;
      card.element?.replaceWith(made);
      card.element = made;
      card.drawn = state;
    }
    list.replaceChildren(...sorted().map((card) => card.element));
    const again = page.cards.find((card) => card.refocus);
    if (again) again.element.firstChild.focus();
    else if (list.contains(focused)) focused.focus();
    for (const card of page.cards) delete card.refocus;
    decide();
    page.control?.refresh();
  }

  function decide() {
    byId("cards").style.setProperty("--limit", `${100 * unusual(page.rate)}%`);
    for (const card of page.cards) {
      if (!card.element || !card.row) continue;
      card.element.classList.toggle("flagged", isFlagged(card));
      card.element.querySelector(".decision").textContent = isFlagged(card) ? "flagged" : "passed";
    }
  }

  function item(card) {
    const views = make("span", { className: "views" });
    const whole = imageElement(card.url, "", "whole");
    // Some formats are read by the service and not by the browser.
    whole.addEventListener("error", () => {
      if (card.row) whole.replaceWith(imageElement(card.row.seen, "", "whole"));
      else whole.remove();
    });
    whole.addEventListener("load", () => {
      whole.classList.toggle("pixels", Math.max(whole.naturalWidth, whole.naturalHeight) <= SMALL);
    });
    views.append(whole);
    const lines = [views];
    if (card.row) {
      views.append(imageElement(card.row.seen, "", "seen"));
      lines.push(title(card.row), bars(card.row));
    } else {
      const text = card.waiting ? "…" : card.error;
      lines.push(make("span", { className: card.waiting ? "soft" : "note", textContent: text }));
    }
    if (card.row?.error) lines.push(make("span", { className: "note", textContent: card.row.error }));
    lines.push(make("span", { className: "name", textContent: card.name, title: card.name }));
    const open = make("button", { type: "button", className: "card" }, ...lines);
    open.addEventListener("click", () => look(card));
    const remove = make("button", { type: "button", className: "remove", textContent: "×" });
    remove.setAttribute("aria-label", `Remove ${card.name}`);
    remove.addEventListener("click", () => drop(card));
    const made = make("li", { className: card.waiting ? "waiting" : "" }, open, remove);
    return made;
  }

  const title = (row) =>
    make(
      "span",
      { className: "title" },
      make("b", { textContent: row.label, title: row.label }),
      make("span", { className: "soft", textContent: percent(row.confidence) }),
      make("span", { className: "decision" }),
    );

  // The name and the p-value of each cue; none of gates that keep no p-values of cues.
  const cuesOf = (row) =>
    page.gate.cue_columns.map((column, place) => [spoken(page.gate.cues[place]), row[column]]);

  // From 0 (p = 1) to 1 (the least p-value that the held-out images allow), logarithmic.
  function unusual(p) {
    const least = 1 / (page.gate.rates.held_out + 1);
    return Math.min(1, Math.max(0, Math.log(p) / Math.log(least)));
  }

  function bars(row) {
    const known = cuesOf(row);
    const deciding = decidingCues(known.map(([, p]) => p));
    const cells = bar("p-value", row.p_value, "all");
    for (const [place, [name, p]] of known.entries()) {
      cells.push(...bar(name, p, deciding.includes(place) ? "deciding" : ""));
    }
    return make("span", { className: "bars" }, ...cells);
  }

  function bar(name, p, kind) {
    const inner = make("span", { className: "bar" });
    inner.style.width = `${100 * unusual(p)}%`;
    const limit = make("span", { className: "limit" });
    return [
      make("i", { className: kind, textContent: name, title: name }),
      make("span", { className: `track ${kind}` }, inner, limit),
      make("i", { className: kind, textContent: short(p) }),
    ];
  }

  function drop(card) {
    const order = sorted();
    const place = order.indexOf(card);
    URL.revokeObjectURL(card.url);
    page.cards = page.cards.filter((other) => other !== card);
    const at = queue.indexOf(card);
    if (at >= 0) queue.splice(at, 1);
    draw();
    const near = sorted()[Math.min(place, page.cards.length - 1)];
    (near ? near.element.firstChild : byId("choose")).focus();
  }

  function moveFocus(event) {
    const cards = [...byId("cards").querySelectorAll(".card")];
    const place = cards.indexOf(document.activeElement);
    if (place < 0) return;
    if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      drop(sorted()[place]);
      return;
    }
    const top = cards[0].getBoundingClientRect().top;
    const columns = cards.filter((card) => card.getBoundingClientRect().top === top).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const target = cards[place + steps[event.key]];
    if (!target) return;
    event.preventDefault();
    target.focus();
  }

  // -- one image --------------------------------------------------------------------------

  function opened(label, ...content) {
    const close = make("button", { type: "button", textContent: "Close" });
    const top = make("div", { className: "top" }, make("span"), close);
    const dialog = make("dialog", {}, top, ...content);
    dialog.setAttribute("aria-label", label);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // beside its content
    });
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    return { dialog, top };
  }

  function look(card) {
    const content = make("div");
    const { dialog, top } = opened(card.name, content);
    const step = (by, text, label) => {
      const made = make("button", { type: "button", textContent: text });
      made.setAttribute("aria-label", label);
      made.addEventListener("click", () => go(by));
      return made;
    };
    top.prepend(step(-1, "←", "Previous image"), step(1, "→", "Next image"));
    const go = (by) => {
      const order = sorted();
      const other = order[order.indexOf(card) + by];
      if (!other) return;
      card = other;
      fill();
    };
    const fill = () => {
      content.replaceChildren(...details(card));
      content.style.setProperty("--limit", `${100 * unusual(page.rate)}%`);
      content.classList.toggle("flagged", isFlagged(card));
    };
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) go(by);
    });
    dialog.addEventListener("close", () => card.element?.firstChild.focus());
    fill();
  }

  function details(card) {
    const figure = (url, caption) =>
      make("figure", {}, imageElement(url, caption), make("figcaption", { textContent: caption }));
    const pair = make("div", { className: "pair" }, figure(card.url, card.name));
    if (!card.row) return [pair, make("p", { textContent: card.error || "…" })];
    const size = page.gate.image_size.join("×");
    pair.append(figure(card.row.seen, `what the network sees, ${size} pixels`));
    const heading = title(card.row);
    heading.querySelector(".decision").textContent = isFlagged(card) ? "flagged" : "passed";
    return [pair, heading, bars(card.row), make("p", { className: "soft", textContent: reason(card) })];
  }

  function reason(card) {
    const cues = cuesOf(card.row);
    const names = decidingCues(cues.map(([, p]) => p)).map((place) => cues[place][0]);
    const most = names.length ? ` Most unusual: ${names.join(", ")}.` : "";
    const compared = isFlagged(card) ? "at most" : "above";
    return (
      `The p-value ${short(card.row.p_value)} is ${compared} the false-alarm rate ${page.rate}, so ` +
      `the image is ${isFlagged(card) ? "flagged" : "passed"}.${most} Score ${
        card.row.score === null ? "infinite" : Number(card.row.score.toPrecision(4))
      }, confidence ${percent(card.row.confidence, 1)}.`
    );
  }

  // -- taking away --------------------------------------------------------------------------

  // As goen score writes it; a spreadsheet would compute a text that begins like a formula.
  function cell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "boolean") return value ? "True" : "False";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r']/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv() {
    const columns = page.gate.columns;
    const lines = sorted().map((card) => {
      const row = { ...card.row, path: card.name, error: card.row?.error ?? (card.error || null) };
      if (card.row) row.is_ood = isFlagged(card);
      return columns.map((column) => cell(row[column])).join(",");
    });
    return [columns.join(","), ...lines].map((line) => `${line}\n`).join("");
  }

  function save() {
    const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    make("a", { href: url, download: "goen.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  // -- camera -------------------------------------------------------------------------------

  async function camera() {
    if (!navigator.mediaDevices) {
      byId("shot").click(); // a phone opens its own
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      show(`The camera cannot be used: ${error.message}`);
      return;
    }
    show("");
    const video = make("video", { autoplay: true, muted: true, playsInline: true });
    video.srcObject = stream;
    const take = make("button", { type: "button", className: "primary", textContent: "Take image" });
    take.disabled = true; // until there is something to take
    video.addEventListener("loadeddata", () => (take.disabled = false));
    const { dialog } = opened("Camera", video, make("div", { className: "row" }, take));
    dialog.addEventListener("close", () => stream.getTracks().forEach((track) => track.stop()));
    take.addEventListener("click", () => {
      const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob((blob) => {
        const number = page.cards.length + 1;
        if (blob) add([new File([blob], `camera ${number}.png`, { type: "image/png" })]);
        dialog.close();
      }, "image/png");
    });
  }

  // -- monitor ------------------------------------------------------------------------------

  let timer = null;

  async function watch() {
    clearTimeout(timer);
    if (byId("monitor").hidden) return;
    try {
      drawMonitor(await ask(`monitor/${encodeURIComponent(page.gate.name)}`));
      show("");
    } catch (error) {
      show(error.message);
    }
    timer = setTimeout(watch, EVERY);
  }

  function drawMonitor({ monitor, activity, waiting }) {
    const last = activity.at(-1) ?? {};
    const milliseconds = (seconds) => (seconds == null ? "–" : `${short(1000 * seconds)} ms`);
    const numbers = [
      ["images per second", short(last.images_per_second ?? 0), "last 2 seconds"],
      ["latency", milliseconds(last.median_seconds), `99 %: ${milliseconds(last.p99_seconds)}`],
      ["waiting", count(waiting), "images"],
    ];
    if (monitor) {
      const interval = monitor.images
        ? `${percent(monitor.flagged_low, 1)} to ${percent(monitor.flagged_high, 1)}`
        : "no images yet";
      const share = monitor.images ? percent(monitor.flagged, 1) : "–";
      numbers.unshift(
        ["log e-value", short(monitor.log_e_value), `alarm at ${short(monitor.alarm_line)}`],
        ["flagged", share, interval],
        ["images", count(monitor.images), "counted"],
      );
    }
    byId("sentence").textContent = headline(monitor);
    byId("moved").textContent = movedStreams(monitor);
    byId("guarantee").textContent = monitor ? `${monitor.guarantee}` : "";
    byId("numbers").replaceChildren(
      ...numbers.map(([name, value, more]) =>
        make("div", {}, make("dt", { textContent: name }),
          make("dd", { textContent: value }, make("small", { textContent: more }))),
      ),
    );
    byId("charts").replaceChildren(...charts(monitor, activity));
  }

  function headline(monitor) {
    if (!monitor) return "This gate was saved without what a monitor needs.";
    if (!monitor.images) return "No images yet.";
    if (!monitor.alarm) return "No change found.";
    return `The images have changed since about image ${count(monitor.since)}.`;
  }

  function movedStreams(monitor) {
    const moved = Object.entries(monitor?.moved ?? {});
    return [...new Set(moved.map(([, change]) => change))]
      .map((change) => {
        const names = moved.filter(([, other]) => other === change).map(([name]) => name);
        return `${change[0].toUpperCase()}${change.slice(1)}: ${names.join(", ")}.`;
      })
      .join(" ");
  }

  const image = (number) => `image ${count(number)}`;
  const ago = (seconds) => {
    if (seconds === 0) return "now";
    return seconds > -120 ? `${short(-seconds)} s ago` : `${Math.round(-seconds / 60)} min ago`;
  };

  function charts(monitor, activity) {
    const found = [];
    const history = monitor?.history ?? [];
    if (history.length > 1) {
      const line = (value) => history.map((point) => [point.images, value(point)]);
      const streams = Object.keys(monitor.streams);
      found.push(
        chart("Log e-value of each stream", image, {
          series: streams.map((name) => [name, line((point) => point.log_e_values[name])]),
          level: [monitor.alarm_line, "alarm"],
        }),
        chart("Share flagged, last 1,000 images", image, {
          series: [["flagged", line((point) => point.flagged)]],
          level: [page.gate.rates.chosen, "false-alarm rate"],
          low: 0,
          high: 1,
          format: (value) => percent(value, value > 0 && value < 0.1 ? 1 : 0),
        }),
      );
    }
    if (activity.length > 1) {
      const end = activity.at(-1).seconds;
      const line = (name, scale) =>
        activity
          .filter((moment) => moment[name] != null)
          .map((moment) => [moment.seconds - end, scale * moment[name]]);
      found.push(
        chart("Images per second", ago, { series: [["images", line("images_per_second", 1)]], low: 0 }),
        chart("Latency, milliseconds", ago, {
          series: [
            ["median", line("median_seconds", 1000)],
            ["99 %", line("p99_seconds", 1000)],
          ],
          low: 0,
        }),
      );
    }
    return found;
  }

  const WIDTH = 480;
  const HEIGHT = 210;
  const LEFT = 44;
  const BOTTOM = 24;

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function chart(name, where, { series, level = null, low = null, high = Infinity, format = short }) {
    const points = series.flatMap(([, line]) => line);
    if (!points.length) return make("div", { className: "chart" }, make("h2", { textContent: name }));
    const xs = points.map(([x]) => x);
    const ys = [...points.map(([, y]) => y), ...(level ? [level[0]] : [])];
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    const y0 = Math.min(...ys, low ?? Infinity);
    const y1 = Math.min(high, Math.max(...ys) + 0.08 * (Math.max(...ys) - y0 || 1));
    const x = (value) => LEFT + ((WIDTH - LEFT - 8) * (value - x0)) / (x1 - x0 || 1);
    const y = (value) => 8 + ((HEIGHT - BOTTOM - 8) * (y1 - value)) / (y1 - y0 || 1);
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    const last = series.map(([label, line]) => `${label} ${format(line.at(-1)?.[1] ?? 0)}`);
    drawing.setAttribute("aria-label", `${name}; now ${last.join(", ")}`);
    for (const value of [y0, (y0 + y1) / 2, y1]) {
      drawing.append(
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
      );
    }
    drawing.append(
      svg("text", { x: LEFT, y: HEIGHT - 6 }, where(x0)),
      svg("text", { x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, where(x1)),
    );
    if (level) {
      const at = y(level[0]);
      drawing.append(
        svg("line", { class: "level", x1: LEFT, x2: WIDTH - 8, y1: at, y2: at }),
        svg("text", { class: "level", x: WIDTH - 12, y: at - 5, "text-anchor": "end" }, level[1]),
      );
    }
    for (const [place, [, line]] of series.entries()) {
      const path = line.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" ");
      drawing.append(svg("polyline", { class: `series s${place % 6}`, points: path }));
    }
    const key = make("div", { className: "key" });
    for (const [place, [label]] of series.entries()) {
      key.append(make("span", { className: `s${place % 6}`, textContent: label }));
    }
    const heading = make("h2", { textContent: name });
    return make("div", { className: "chart" }, heading, drawing, series.length > 1 ? key : null);
  }

  // -- the page -----------------------------------------------------------------------------

  function choose(name) {
    page.gate = page.gates.find((gate) => gate.name === name);
    const { classes, rates } = page.gate;
    const more = classes.length - CLASSES;
    const listed = classes.slice(0, CLASSES).join(", ") + (more > 0 ? ` and ${count(more)} others` : "");
    byId("about").textContent = `This gate classifies ${listed}, and is meant to flag what is none of these.`;
    const least = short(1 / (rates.held_out + 1));
    byId("legend").textContent =
      `Longer bar, more unusual: from p = 1 to p = ${least}. The line is the rate; the first bar decides.`;
    const counts = () => page.cards.filter((card) => card.row).map((card) => [card.row.p_value, 1]);
    page.rate = rates.chosen;
    page.control = rateControl(rates, counts, (rate) => {
      page.rate = rate;
      decide();
    });
    byId("rate").replaceChildren(page.control.element);
    queue.length = 0;
    for (const card of page.cards) send(card);
    draw();
    watch();
  }

  function turn(name) {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const chosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    }
    show("");
    watch();
  }

  async function start() {
    try {
      const { gates, limits } = await ask("gates");
      Object.assign(page, { gates, limits });
    } catch (error) {
      byId("token").hidden = error.status !== 401;
      if (error.status !== 401 || page.token) show(error.message);
      if (error.status === 401) byId("token-field").focus();
      return;
    }
    show("");
    byId("token").hidden = true;
    byId("gate").replaceChildren(...page.gates.map(({ name }) => make("option", { textContent: name })));
    choose(page.gates[0].name);
    turn("images");
  }

  function dragging(on) {
    document.body.classList.toggle("dragging", on);
  }

  function listen() {
    byId("token").addEventListener("submit", (event) => {
      event.preventDefault();
      page.token = byId("token-field").value;
      start();
    });
    byId("gate").addEventListener("change", () => choose(byId("gate").value));
    byId("sort").addEventListener("change", draw);
    byId("choose").addEventListener("click", () => byId("files").click());
    byId("camera").addEventListener("click", camera);
    byId("csv").addEventListener("click", save);
    byId("clear").addEventListener("click", () => {
      for (const card of page.cards) URL.revokeObjectURL(card.url);
      page.cards = [];
      queue.length = 0;
      draw();
      byId("choose").focus();
    });
    for (const id of ["files", "shot"]) {
      byId(id).addEventListener("change", () => {
        add(byId(id).files);
        byId(id).value = "";
      });
    }
    byId("cards").addEventListener("keydown", moveFocus);
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const name = tab.id.replace("tab-", "");
      tab.addEventListener("click", () => page.gate && turn(name));
      tab.addEventListener("keydown", (event) => {
        if (!["ArrowLeft", "ArrowRight"].includes(event.key) || !page.gate) return;
        const other = name === "images" ? "monitor" : "images";
        turn(other);
        byId(`tab-${other}`).focus();
      });
    }
    const isFiles = (event) => page.gate && [...(event.dataTransfer?.types ?? [])].includes("Files");
    window.addEventListener("dragover", (event) => {
      event.preventDefault();
      dragging(isFiles(event));
    });
    window.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) dragging(false);
    });
    window.addEventListener("drop", (event) => {
      event.preventDefault();
      dragging(false);
      if (!isFiles(event)) return;
      turn("images");
      add(event.dataTransfer.files);
    });
    window.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length || !page.gate) return;
      turn("images");
      add(files);
    });
  }

  listen();
  start();
}
