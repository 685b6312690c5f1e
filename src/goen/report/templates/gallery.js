
// Walls of pictures: the tiles and their filters. What it shares with goen serve is in rates.js.
{
  const AT_ONCE = { large: 60, small: 24 };
  const ALL = "";

  class Wall {
    constructor(root) {
      const data = JSON.parse(root.querySelector("script").textContent);
      root.querySelector("p.warn").remove(); // that no script has run
      Object.assign(this, data, { cues: data.cues.map(spoken), layers: data.layers.map(spoken) });
      this.rate = data.rates ? data.rates.chosen : null;
      this.filters = { text: "", decision: ALL, label: ALL, truth: ALL, cue: ALL };
      this.atOnce = root.classList.contains("small") ? AT_ONCE.small : AT_ONCE.large;
      this.limit = this.atOnce;
      this.list = make("ul", { className: "tiles" });
      this.list.addEventListener("keydown", (event) => this.moveFocus(event));
      this.status = make("p", { className: "soft" });
      this.status.setAttribute("role", "status");
      this.more = make("p", { className: "more" });
      if (this.rates) root.append(this.rateControl());
      if (this.tiles.length > this.atOnce / 2) root.append(this.filterControl(), this.status);
      root.append(this.list, this.more);
      this.draw();
    }

    // -- decisions --------------------------------------------------------------------------

    // The same comparison of the same numbers as in Gate.predict.
    isFlagged(tile) {
      return tile.p <= this.rate;
    }

    // Of all pictures, those that are not on the page included.
    total() {
      return this.rates.counts.reduce((sum, [, number]) => sum + number, 0);
    }

    rateControl() {
      const decide = (rate) => {
        this.rate = rate;
        this.decideAgain();
      };
      return rateControl(this.rates, () => this.rates.counts, decide).element;
    }

    decideAgain() {
      if (this.filters.decision !== ALL) this.draw();
      else for (const [place, item] of [...this.list.children].entries()) this.mark(item, place);
    }

    mark(item, place) {
      if (!this.rates) return;
      const flagged = this.isFlagged(this.drawn[place]);
      item.classList.toggle("flagged", flagged);
      item.querySelector(".decision").textContent = flagged ? "flagged" : "passed";
    }

    // -- filters ----------------------------------------------------------------------------

    filterControl() {
      const search = make("input", { type: "search", placeholder: "name or class" });
      search.setAttribute("aria-label", "Search by name or class");
      search.addEventListener("input", () => this.filter("text", search.value.toLowerCase()));
      const select = (name, all, names, numbersOf) =>
        this.select(name, all, this.present(names, numbersOf));
      const selects = [
        select("label", "any predicted class", this.classes, (tile) => [tile.label]),
      ];
      if (this.rates) {
        const decisions = ["flagged", "passed"].map((decision) => [decision, decision]);
        selects.unshift(this.select("decision", "any decision", decisions));
      }
      if (this.tiles.some((tile) => tile.truth !== null)) {
        selects.push(select("truth", "any label", this.classes, (tile) => [tile.truth]));
      }
      if (this.cues.length) {
        selects.push(select("cue", "any deciding cue", this.cues, (tile) => decidingCues(tile.cues)));
      }
      return make("div", { className: "filters" }, search, ...selects);
    }

    // The numbers that tiles have, each with its name and how many tiles have it.
    present(names, numbersOf) {
      const times = new Map();
      for (const tile of this.tiles) {
        for (const number of numbersOf(tile)) times.set(number, (times.get(number) ?? 0) + 1);
      }
      const inOrder = [...times].sort(([a], [b]) => a - b);
      return inOrder.map(([number, t]) => [String(number), `${names[number]} (${count(t)})`]);
    }

    select(filter, all, options) {
      const select = make("select", {}, make("option", { value: ALL, textContent: all }));
      select.setAttribute("aria-label", all);
      for (const [value, textContent] of options) {
        select.append(make("option", { value, textContent }));
      }
      select.addEventListener("change", () => this.filter(filter, select.value));
      return select;
    }

    filter(name, value) {
      this.filters[name] = value;
      this.limit = this.atOnce;
      this.draw();
    }

    passes(tile) {
      const { text, decision, label, truth, cue } = this.filters;
      const words = `${tile.name} ${this.classes[tile.label]}`.toLowerCase();
      return (
        words.includes(text) &&
        (decision === ALL || (decision === "flagged") === this.isFlagged(tile)) &&
        (label === ALL || tile.label === Number(label)) &&
        (truth === ALL || tile.truth === Number(truth)) &&
        (cue === ALL || decidingCues(tile.cues).includes(Number(cue)))
      );
    }

    // -- tiles ------------------------------------------------------------------------------

    draw() {
      this.found = this.tiles.filter((tile) => this.passes(tile));
      this.drawn = this.found.slice(0, this.limit);
      this.list.replaceChildren(...this.drawn.map((tile, place) => this.item(tile, place)));
      const shown = this.drawn.length < this.found.length ? `${count(this.drawn.length)} of ` : "";
      const total = this.rates ? this.total() : this.tiles.length;
      const most = count(this.tiles.length);
      const among = this.tiles.length < total ? ` among the ${most} most suspicious` : "";
      this.status.textContent = `${shown}${count(this.found.length)} pictures${among}`;
      this.drawMore();
    }

    drawMore() {
      const left = this.found.length - this.drawn.length;
      const button = (number, text) => {
        const made = make("button", { type: "button", textContent: text });
        made.addEventListener("click", () => {
          const next = this.drawn.length;
          this.limit = next + number;
          this.draw();
          this.list.children[next].firstChild.focus();
        });
        return made;
      };
      const some = left > this.atOnce ? button(this.atOnce, `${this.atOnce} more`) : null;
      const rest = left > 0 ? button(left, `all ${count(this.found.length)}`) : null;
      this.more.replaceChildren(...[some, rest].filter(Boolean));
    }

    item(tile, place) {
      const thumb = tile.thumbnail || tile.seen;
      // Thousands of pictures are decoded when they come into view, not before.
      const loading = place < this.atOnce ? "eager" : "lazy";
      const whole = picture(thumb, "", "whole", loading);
      const pictures = make("span", { className: "pictures" }, whole);
      if (tile.thumbnail) pictures.append(picture(tile.seen, "", "seen", loading));
      if (this.rates) pictures.append(make("span", { className: "decision" }));
      const lines = [pictures, this.classLine(tile), this.pLine(tile)];
      const near = this.nearest(tile);
      if (near.length) lines.push(this.nearLine(near, loading));
      if (tile.note) lines.push(make("span", { className: "note", textContent: tile.note }));
      const file = tile.name.split(/[\\/]/).at(-1);
      lines.push(make("span", { className: "name", textContent: file, title: tile.name }));
      const button = make("button", { type: "button", className: "tile" }, ...lines);
      button.addEventListener("click", () => this.open(place));
      const item = make("li", {}, button);
      this.mark(item, place);
      return item;
    }

    classLine(tile) {
      const label = make("b", { textContent: this.classes[tile.label] });
      const differs = tile.truth !== null && tile.truth !== tile.label;
      const truth = differs ? `, labelled ${this.classes[tile.truth]}` : "";
      return make("span", {}, label, ` ${percent(tile.confidence)}${truth}`);
    }

    pLine(tile) {
      const cues = tile.cues.length ? decidingCues(tile.cues).map((cue) => this.cues[cue]) : [];
      return make("span", {}, [`p = ${short(tile.p)}`, ...cues].join(", "));
    }

    // The neighbours in the layer that decided, else in the last layer.
    nearest(tile) {
      if (!tile.nearest.length) return [];
      const layers = decidingCues(tile.cues).map((cue) => this.layers.indexOf(this.cues[cue]));
      return tile.nearest[layers.find((layer) => layer >= 0) ?? tile.nearest.length - 1];
    }

    nearLine(near, loading) {
      const line = make("span", { className: "near" });
      for (const [number, label] of near) line.append(this.neighbour([number, label], loading));
      return line;
    }

    neighbour([number, label], loading, ...more) {
      const [name, url] = this.training[number] ?? ["", ""];
      const lines = [`#${number}`, this.classes[label], ...more];
      const parts = lines.map((textContent) => make("span", { textContent, title: textContent }));
      return make("span", { title: name }, url ? picture(url, "", "", loading) : null, ...parts);
    }

    fileOf(number) {
      return (this.training[number] ?? [""])[0];
    }

    moveFocus(event) {
      const tiles = [...this.list.querySelectorAll(".tile")];
      const place = tiles.indexOf(document.activeElement);
      if (place < 0) return;
      const top = tiles[0].getBoundingClientRect().top;
      const columns = tiles.filter((tile) => tile.getBoundingClientRect().top === top).length;
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
      const next = tiles[place + steps[event.key]];
      if (!next) return;
      event.preventDefault();
      next.focus();
    }

    // -- one picture ------------------------------------------------------------------------

    open(place) {
      const button = (text, label, act) => {
        const made = make("button", { type: "button", textContent: text });
        made.setAttribute("aria-label", label);
        made.addEventListener("click", act);
        return made;
      };
      const where = make("span");
      const content = make("div");
      const show = (at) => {
        if (at < 0 || at >= this.drawn.length) return;
        place = at;
        where.textContent = `${count(at + 1)} of ${count(this.drawn.length)}`;
        content.replaceChildren(...this.closer(this.drawn[at]));
        dialog.setAttribute("aria-label", this.drawn[at].name);
      };
      const bar = make(
        "div",
        { className: "bar" },
        button("←", "Previous picture", () => show(place - 1)),
        button("→", "Next picture", () => show(place + 1)),
        where,
        button("×", "Close", () => dialog.close()),
      );
      const dialog = make("dialog", { className: "closer" }, bar, content);
      dialog.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (step) show(place + step);
      });
      dialog.addEventListener("click", (event) => {
        if (event.target === dialog) dialog.close(); // beside its content
      });
      dialog.addEventListener("close", () => {
        dialog.remove();
        this.list.children[place].firstChild.focus();
      });
      document.body.append(dialog);
      show(place);
      dialog.showModal();
    }

    closer(tile) {
      const figure = (url, caption) =>
        make("figure", {}, picture(url, caption), make("figcaption", { textContent: caption }));
      const pictures = make("div", { className: "pair" });
      if (tile.thumbnail) pictures.append(figure(tile.thumbnail, "the picture"));
      pictures.append(figure(tile.seen, "what the network saw"));
      const confidence = `confidence ${percent(tile.confidence, 1)}`;
      const facts = [["predicted class", `${this.classes[tile.label]}, ${confidence}`]];
      if (tile.truth !== null) facts.push(["labelled", this.classes[tile.truth]]);
      facts.push(["p-value", short(tile.p)]);
      if (this.rates) facts.push(["decision", this.isFlagged(tile) ? "flagged" : "passed"]);
      for (const [cue, p] of tile.cues.entries()) facts.push([this.cues[cue], `p = ${short(p)}`]);
      if (tile.note) facts.push(["note", tile.note]);
      const rows = facts.map(([what, value]) =>
        make("div", {}, make("dt", { textContent: what }), make("dd", { textContent: value })),
      );
      const near = tile.nearest.map((found, layer) => this.nearIn(this.layers[layer], found));
      return [make("h3", { textContent: tile.name }), pictures, make("dl", {}, ...rows), ...near];
    }

    nearIn(layer, found) {
      const items = found.map(([number, label, distance]) => {
        const more = [`distance ${short(distance)}`, this.fileOf(number)];
        return make("li", {}, this.neighbour([number, label], "eager", ...more));
      });
      return make(
        "div",
        { className: "neighbours" },
        make("h4", { textContent: `Nearest training images in ${layer}` }),
        make("ul", {}, ...items),
      );
    }
  }

  for (const root of document.querySelectorAll(".wall")) new Wall(root);
}
