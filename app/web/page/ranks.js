// The ranks that write in a log, in; those that somebody wants to see, out: a box to fold out, one checkbox each.

import { Problem } from "./api.js";
import { clean } from "./clean.js";
import { add, fill, h, say } from "./dom.js";

/** Boxes shown at most. */
const MOST = 200;

export class RankFilter {
  /** @param {import("./sources.js").ServedLog} source @param {(picked: string[]) => void} pick */
  constructor(source, pick) {
    this.source = source;
    this.pick = pick;
    /** @type {Map<string, number>} */
    this.counts = new Map();
    /** @type {string[]} */
    this.picked = [];
    this.control = new AbortController();
    this.title = h("summary", {}, "Ranks: all");
    this.boxes = h("div.boxes");
    this.word = h("p.dim", { role: "status" });
    this.all = h("button.small", { type: "button", onclick: () => this.choose([]) }, "All ranks");
    this.element = h("details.ranks", { ontoggle: () => this.toggled(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event) }, this.title,
      h("fieldset.popup.card", {}, h("legend", {}, "Show only the lines of"), this.boxes, this.word, this.all));
    this.outside = (/** @type {Event} */ event) => {
      if (this.element.open && event.target instanceof Node && !this.element.contains(event.target)) this.element.open = false;
    };
    addEventListener("pointerdown", this.outside);
  }

  close() {
    removeEventListener("pointerdown", this.outside);
    this.control.abort();
  }

  /** Who writes is asked for each time that somebody wants to know. */
  async toggled() {
    this.control.abort();
    if (!this.element.open) return;
    const control = (this.control = new AbortController());
    say(this.word, "Reading the log …");
    try {
      await this.source.ranks((counts, over) => {
        if (control.signal.aborted) return;
        this.counts = new Map(counts);
        say(this.word, over ? "" : "Reading the log …");
        this.draw();
      }, control.signal);
      if (!this.counts.size) say(this.word, "No line yet.");
    } catch (error) {
      if (control.signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      say(this.word, error.message);
    }
  }

  /** What is shown by now. @param {string[]} picked */
  show(picked) {
    this.picked = picked;
    say(this.title, picked.length ? `Ranks: ${picked.slice(0, 3).map(named).join(", ")}${picked.length > 3 ? ` and ${picked.length - 3} more` : ""}` : "Ranks: all");
    this.element.classList.toggle("on", picked.length > 0);
    this.draw();
  }

  /** @param {string[]} picked */
  choose(picked) {
    this.pick(picked);
  }

  /** Boxes stay where they are while counts come in: one that has the focus keeps it. */
  draw() {
    const names = [...new Set([...this.counts.keys(), ...this.picked])].sort((a, b) => (a === "" ? 1 : b === "" ? -1 : a.localeCompare(b, "en", { numeric: true })));
    const shown = names.slice(0, MOST);
    const before = [...this.boxes.querySelectorAll("label")].map((each) => each.dataset.rank);
    if (JSON.stringify(shown) !== JSON.stringify(before)) {
      fill(this.boxes, shown.map((name) => {
        const box = h("input", { type: "checkbox", onchange: () => this.choose(shown.filter((each) => this.box(each)?.checked)) });
        return h("label", { "data-rank": name }, box, h("span", {}, named(name)), h("span.dim.lines"));
      }));
      if (names.length > shown.length) add(this.boxes, h("p.dim", {}, `and ${names.length - shown.length} more`));
    }
    for (const name of shown) {
      const box = this.box(name);
      if (!box) continue;
      box.checked = this.picked.includes(name);
      const count = this.counts.get(name);
      say(/** @type {Element} */ (box.parentElement?.lastElementChild), count === undefined ? "" : count.toLocaleString("en"));
    }
    this.all.disabled = !this.picked.length;
  }

  /** @param {string} name @returns {HTMLInputElement | undefined} */
  box(name) {
    return [...this.boxes.children].find((each) => each.dataset.rank === name)?.querySelector("input");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== "Escape" || !this.element.open) return;
    event.preventDefault();
    this.element.open = false;
    this.title.focus();
  }
}

/** @param {string} rank */
function named(rank) {
  return rank ? clean(rank) : "no rank";
}
