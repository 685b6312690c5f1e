
// What the pages of reports and the page of goen serve share: elements, numbers as people read
// them, and the choice of a false-alarm rate.

// Text from files and folders enters the page as text nodes, attributes and properties only.
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
};

const count = (number) => number.toLocaleString("en");
const short = (number) => String(Number(number.toPrecision(2)));
const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

// The layers of a torch Sequential are called 0, 1, ...; a bare number among p-values says nothing.
const spoken = (cue) => (/^[0-9]/.test(cue) ? `layer ${cue}` : cue);

// Exact images are PNGs of few pixels, which a browser would blur when it enlarges them.
const imageElement = (url, alt, className = "", loading = "eager") =>
  make("img", {
    loading,
    src: url,
    alt,
    className: url.startsWith("data:image/png") ? `${className} pixels` : className,
  });

// The cues with the smallest p-value, by their places.
const decidingCues = (cues) => {
  const least = Math.min(...cues);
  return [...cues.keys()].filter((place) => cues[place] === least);
};

// Why a gate would refuse this rate; nothing if it would not.
function rateRefusal(rate, heldOut) {
  if (!(rate > 0 && rate < 1)) return "A false-alarm rate lies strictly between 0 and 1.";
  if (1 / (heldOut + 1) <= rate) return "";
  const needed = count(Math.ceil(1 / rate) - 1);
  return `A rate of ${rate} needs ${needed} held-out images; this gate has ${count(heldOut)}.`;
}

// The slider, its number and what it means: { element, refresh }. An image is flagged where its
// p-value is at most the rate, the same comparison of the same numbers as in Gate.predict.
// `counts` returns pairs of a p-value and how many images have it; `decide` is told each rate.
function rateControl({ choices, chosen, held_out: heldOut }, counts, decide) {
  const slider = make("input", { type: "range", min: 0, max: choices.length - 1, step: 1 });
  const field = make("input", { type: "text", inputMode: "decimal", size: 8 });
  const reset = make("button", { type: "button", textContent: `the gate's own, ${chosen}` });
  const verdict = make("p", { className: "verdict" });
  const problem = make("p", { className: "warn", hidden: true });
  slider.setAttribute("aria-label", "False-alarm rate");
  field.setAttribute("aria-label", "False-alarm rate as a number");
  verdict.setAttribute("role", "status");
  problem.setAttribute("role", "alert");
  let current = chosen;

  const refresh = () => {
    const sum = (chosenOnes) => chosenOnes.reduce((all, [, number]) => all + number, 0);
    const total = sum(counts());
    const flagged = sum(counts().filter(([p]) => p <= current));
    verdict.replaceChildren(
      make("b", { textContent: `${count(flagged)} of ${count(total)} flagged` }),
      ` (${percent(total ? flagged / total : 0, 1)}). Of ${count(total)} ID images at most `,
      `${count(Math.floor(current * total * 10) / 10)} would be, on average.`,
    );
  };
  const choose = (rate, typed = false) => {
    const why = rateRefusal(rate, heldOut);
    field.toggleAttribute("aria-invalid", why !== "");
    problem.hidden = why === "";
    problem.textContent = why;
    if (why) return;
    current = rate;
    const after = choices.findIndex((choice) => choice > rate);
    slider.value = (after < 0 ? choices.length : after) - 1;
    slider.setAttribute("aria-valuetext", String(rate));
    if (!typed) field.value = String(rate);
    reset.hidden = rate === chosen;
    refresh();
    decide(rate);
  };
  slider.addEventListener("input", () => choose(choices[slider.value]));
  field.addEventListener("input", () => choose(Number(field.value.replace(",", ".")), true));
  reset.addEventListener("click", () => choose(chosen));
  choose(chosen);
  const title = make("span", { textContent: "False-alarm rate" });
  const row = make("div", {}, title, field, slider, reset);
  return { element: make("div", { className: "rate" }, row, problem, verdict), refresh };
}
