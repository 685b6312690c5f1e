
// Galleries of images: the cards and their filters. What it shares with goen serve is in rates.js.
{
  const AT_ONCE = { large: 60, small: 24 };
  const ALL = "";

  class GalleryView {
    constructor(root) {
      const data = JSON.parse(root.querySelector("script").textContent);
      root.querySelector("p.warn").remove(); // that no script has run
      Object.assign(this, data, { cues: data.cues.map(spoken), layers: data.layers.map(spoken) });
      this.rate = data.rates ? data.rates.chosen : null;
      this.filters = { text: "", decision: ALL, label: ALL, truth: ALL, cue: ALL };
      this.atOnce = root.classList.contains("small") ? AT_ONCE.small : AT_ONCE.large;
      this.limit = this.atOnce;
      this.list = make("ul", { className: "cards" });
      this.list.addEventListener("keydown", (event) => this.moveFocus(event));
      this.status = make("p", { className: "soft" });
      this.status.setAttribute("role", "status");
      this.more = make("p", { className: "more" });
      if (this.rates) root.append(this.rateControl());
      if (this.cards.length > this.atOnce / 2) root.append(this.filterControl(), this.status);
      root.append(this.list, this.more);
      this.draw();
    }

    // -- decisions --------------------------------------------------------------------------

    // The same comparison of the same numbers as in Gate.predict.
    isFlagged(card) {
      return card.p_value <= this.rate;
    }

    // Of all images, those that are not on the page included.
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
        select("label", "any predicted class", this.classes, (card) => [card.label]),
      ];
      if (this.rates) {
        const decisions = ["flagged", "passed"].map((decision) => [decision, decision]);
        selects.unshift(this.select("decision", "any decision", decisions));
      }
      if (this.cards.some((card) => card.truth !== null)) {
        selects.push(select("truth", "any label", this.classes, (card) => [card.truth]));
      }
      if (this.cues.length) {
        selects.push(select("cue", "any deciding cue", this.cues, (card) => decidingCues(card.cue_p_values)));
      }
      return make("div", { className: "filters" }, search, ...selects);
    }

    // The numbers that cards have, each with its name and how many cards have it.
    present(names, numbersOf) {
      const times = new Map();
      for (const card of this.cards) {
        for (const number of numbersOf(card)) times.set(number, (times.get(number) ?? 0) + 1);
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

    passes(card) {
      const { text, decision, label, truth, cue } = this.filters;
      const words = `${card.name} ${this.classes[card.label]}`.toLowerCase();
      return (
        words.includes(text) &&
        (decision === ALL || (decision === "flagged") === this.isFlagged(card)) &&
        (label === ALL || card.label === Number(label)) &&
        (truth === ALL || card.truth === Number(truth)) &&
        (cue === ALL || decidingCues(card.cue_p_values).includes(Number(cue)))
      );
    }

    // -- cards ------------------------------------------------------------------------------

    draw() {
      this.found = this.cards.filter((card) => this.passes(card));
      this.drawn = this.found.slice(0, this.limit);
      this.list.replaceChildren(...this.drawn.map((card, place) => this.item(card, place)));
      const shown = this.drawn.length < this.found.length ? `${count(this.drawn.length)} of ` : "";
      const total = this.rates ? this.total() : this.cards.length;
      const most = count(this.cards.length);
      const among = this.cards.length < total ? ` among the ${most} most suspicious` : "";
      this.status.textContent = `${shown}${count(this.found.length)} images${among}`;
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

    item(card, place) {
      const thumb = card.thumbnail || card.seen;
      // Thousands of images are decoded when they come into view, not before.
      const loading = place < this.atOnce ? "eager" : "lazy";
      const whole = imageElement(thumb, "", "whole", loading);
      const images = make("span", { className: "images" }, whole);
      if (card.thumbnail) images.append(imageElement(card.seen, "", "seen", loading));
      if (this.rates) images.append(make("span", { className: "decision" }));
      const lines = [images, this.classLine(card), this.pLine(card)];
      const near = this.nearest(card);
      if (near.length) lines.push(this.nearLine(near, loading));
      if (card.note) lines.push(make("span", { className: "note", textContent: card.note }));
      const file = card.name.split(/[\\/]/).at(-1);
      lines.push(make("span", { className: "name", textContent: file, title: card.name }));
      const button = make("button", { type: "button", className: "card" }, ...lines);
      button.addEventListener("click", () => this.open(place));
      const item = make("li", {}, button);
      this.mark(item, place);
      return item;
    }

    classLine(card) {
      const label = make("b", { textContent: this.classes[card.label] });
      const differs = card.truth !== null && card.truth !== card.label;
      const truth = differs ? `, labelled ${this.classes[card.truth]}` : "";
      return make("span", {}, label, ` ${percent(card.confidence)}${truth}`);
    }

    pLine(card) {
      const cues = card.cue_p_values.length ? decidingCues(card.cue_p_values).map((cue) => this.cues[cue]) : [];
      return make("span", {}, [`p = ${short(card.p_value)}`, ...cues].join(", "));
    }

    // The neighbours in the layer that decided, else in the last layer.
    nearest(card) {
      if (!card.nearest.length) return [];
      const layers = decidingCues(card.cue_p_values).map((cue) => this.layers.indexOf(this.cues[cue]));
      return card.nearest[layers.find((layer) => layer >= 0) ?? card.nearest.length - 1];
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
      return make("span", { title: name }, url ? imageElement(url, "", "", loading) : null, ...parts);
    }

    fileOf(number) {
      return (this.training[number] ?? [""])[0];
    }

    moveFocus(event) {
      const cards = [...this.list.querySelectorAll(".card")];
      const place = cards.indexOf(document.activeElement);
      if (place < 0) return;
      const top = cards[0].getBoundingClientRect().top;
      const columns = cards.filter((card) => card.getBoundingClientRect().top === top).length;
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
      const next = cards[place + steps[event.key]];
      if (!next) return;
      event.preventDefault();
      next.focus();
    }

    // -- one image ------------------------------------------------------------------------

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
        button("←", "Previous image", () => show(place - 1)),
        button("→", "Next image", () => show(place + 1)),
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

    closer(card) {
      const figure = (url, caption) =>
        make("figure", {}, imageElement(url, caption), make("figcaption", { textContent: caption }));
      const images = make("div", { className: "pair" });
      if (card.thumbnail) images.append(figure(card.thumbnail, "the image"));
      images.append(figure(card.seen, "what the network saw"));
      const confidence = `confidence ${percent(card.confidence, 1)}`;
      const facts = [["predicted class", `${this.classes[card.label]}, ${confidence}`]];
      if (card.truth !== null) facts.push(["labelled", this.classes[card.truth]]);
      facts.push(["p-value", short(card.p_value)]);
      if (this.rates) facts.push(["decision", this.isFlagged(card) ? "flagged" : "passed"]);
      for (const [cue, p] of card.cue_p_values.entries()) facts.push([this.cues[cue], `p = ${short(p)}`]);
      if (card.note) facts.push(["note", card.note]);
      const rows = facts.map(([what, value]) =>
        make("div", {}, make("dt", { textContent: what }), make("dd", { textContent: value })),
      );
      const near = card.nearest.map((found, layer) => this.nearIn(this.layers[layer], found));
      return [make("h3", { textContent: card.name }), images, make("dl", {}, ...rows), ...near];
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

  for (const root of document.querySelectorAll(".gallery")) new GalleryView(root);
}
