// A log of any length in, the part of it that is looked at out: only visible lines are elements, whatever its size.

import { Problem } from "./api.js";
import { clean, severity } from "./clean.js";
import { fill, h, say } from "./dom.js";
import { RankFilter } from "./ranks.js";
import { LocalLog } from "./sources.js";
import { plural } from "./words.js";

/** Height of a line in CSS pixels; style.css has the same. */
const ROW = 20;
/** Browsers do not scroll further than some 17 million pixels: longer logs are scrolled to scale. */
const TALLEST = 6_000_000;
const OVERSCAN = 6;

/** @typedef {import("./sources.js").ServedLog | import("./sources.js").LocalLog} Source */

export class LogView {
  /** @param {Element} host @param {Source} source @param {{live?: boolean}} [more] */
  constructor(host, source, more = {}) {
    this.source = source;
    this.live = this.following = Boolean(more.live);
    this.name = source.log;
    this.frozen = 0;
    /** Marks by line number. @type {Map<number, string>} */
    this.marks = new Map();
    this.marked = 0;
    /** A line that is to be shown once the log has it. */
    this.sought = 0;
    this.needle = "";
    /** @type {number[]} */
    this.found = [];
    this.place = -1;
    /** Whether only lines that were found are shown. */
    this.only = false;
    /** Ranks that alone are shown; none: all are. @type {string[]} */
    this.picked = [];
    /** Their lines, as far as the log was looked through. @type {number[]} */
    this.mine = [];
    /** The next line to look at for them. */
    this.upto = 1;
    this.looking = new AbortController();
    this.search = new AbortController();
    this.pending = 0;
    this.closed = false;
    this.layer = h("div.rows", { role: "presentation" });
    this.spacer = h("div.spacer", {}, this.layer);
    this.port = h("div.port", { tabindex: "0", role: "region", "aria-label": "Lines of the log", dir: "ltr" }, this.spacer);
    this.map = h("div.map", { "aria-hidden": "true" });
    this.empty = h("p.empty.dim", { hidden: true });
    this.count = h("span.dim.count", { role: "status" });
    this.total = h("p.dim");
    this.input = h("input", { type: "search", placeholder: "Search the log", "aria-label": "Search the log", spellcheck: "false",
      oninput: () => this.seek(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event) });
    this.filter = h("button.small", { type: "button", "aria-pressed": "false", hidden: true, onclick: () => this.narrow(!this.only) }, "Only these");
    this.follow = h("button.small", { type: "button", "aria-pressed": "true", hidden: !more.live, onclick: () => this.toggle() });
    this.first = h("button.small", { type: "button", hidden: true, onclick: () => this.go(Math.min(...this.proofs())) }, "First failure");
    this.ranks = source instanceof LocalLog ? null : new RankFilter(source, (picked) => this.pick(picked));
    fill(host,
      h("div.part-head", {}, h("h2", {}, "Log"), this.total,
        h("div.tools", {}, this.ranks?.element, this.input, this.count,
          h("button.small", { type: "button", "aria-label": "Previous match", onclick: () => this.step(-1) }, "↑"),
          h("button.small", { type: "button", "aria-label": "Next match", onclick: () => this.step(1) }, "↓"),
          this.filter, this.first, this.follow)),
      h("div.log", {}, this.port, this.map, this.empty));
    this.port.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.port);
    this.changed();
  }

  close() {
    this.closed = true;
    this.size.disconnect();
    this.search.abort();
    this.looking.abort();
    this.ranks?.close();
  }

  /** How many lines are shown: a paused log stands still. */
  get lines() {
    return this.frozen || this.source.lines;
  }

  /** The only lines that are shown, by number; null when all are. */
  get chosen() {
    return this.only ? this.found : this.picked.length ? this.mine : null;
  }

  /** How many rows there are to scroll through. */
  get shown() {
    return this.chosen?.length ?? this.lines;
  }

  /** Another log: what was found and marked in the one before says nothing here. */
  anew() {
    this.name = this.source.log;
    this.following = this.live;
    this.frozen = this.marked = 0;
    this.found = [];
    this.place = -1;
    this.only = false;
    this.filter.hidden = true;
    if (this.picked.length) this.pick(this.picked);
    else if (this.needle) this.seek();
  }

  // By rank

  /** Shows only the lines of these ranks; of all when there are none. @param {string[]} picked */
  pick(picked) {
    this.looking.abort();
    this.looking = new AbortController();
    this.picked = picked;
    this.mine = [];
    this.upto = 1;
    this.only = false;
    this.ranks?.show(picked);
    if (this.needle) this.seek();
    this.layout();
    this.extend();
  }

  /** Looks through what of the log was not yet looked through for lines of the ranks that were picked. */
  async extend() {
    const { signal } = this.looking;
    const source = this.source;
    if (!this.picked.length || this.extending === signal || source instanceof LocalLog) return;
    this.extending = signal;
    try {
      while (this.upto <= this.lines && !signal.aborted) {
        const { found, more, lines } = await source.look({ ranks: this.picked, from: this.upto, count: 20_000 }, signal);
        if (signal.aborted) return;
        while (this.mine.length && this.mine[this.mine.length - 1] >= this.upto) this.mine.pop();
        const end = this.lines; // of a log that stands still, what came since is none
        for (const number of found) if (number <= end) this.mine.push(number);
        this.upto = Math.min(more ?? Math.max(1, lines), end + 1); // the last line may not have been whole
        this.layout();
        if (more === null) break;
      }
    } catch (error) {
      if (!signal.aborted && !(error instanceof Problem)) throw error;
    } finally {
      if (this.extending === signal) this.extending = null;
    }
  }

  /** The source has more, or another log. */
  changed() {
    if (this.source.log !== this.name) this.anew();
    if (this.sought && this.sought <= this.source.lines) this.go(this.sought);
    this.layout();
    if (!this.frozen) this.extend();
  }

  /** What depends on how many lines there are. */
  layout() {
    const lines = this.shown;
    const whole = this.source.lines ? plural(this.source.lines, "line") : "";
    say(this.total, this.chosen && whole ? `${lines.toLocaleString("en")} of ${whole}` : whole);
    const news = this.frozen ? this.source.lines - this.frozen : 0;
    say(this.follow, this.following ? "Pause" : news > 0 ? `Follow (${news.toLocaleString("en")} new)` : "Follow");
    this.follow.setAttribute("aria-pressed", String(this.following));
    this.empty.hidden = lines > 0;
    if (!lines) say(this.empty, this.source.trouble || (this.picked.length ? "No line of these ranks so far." : "The log is empty so far."));
    this.spacer.style.height = `${Math.min(lines * ROW, TALLEST)}px`;
    if (this.following) this.port.scrollTop = this.port.scrollHeight;
    this.drawMap();
    this.draw();
  }

  /** @param {Map<number, string>} marks "cause" or "symptom" by line number */
  mark(marks) {
    this.marks = marks;
    this.first.hidden = this.proofs().length === 0;
    this.drawMap();
    this.draw();
  }

  proofs() {
    return [...this.marks].filter(([, kind]) => kind === "cause").map(([line]) => line);
  }

  // Where it stands

  /** How many lines fit. */
  get fits() {
    return this.port.clientHeight / ROW;
  }

  /** The line number at the upper edge, counted from 0, with its fraction. */
  get top() {
    const whole = this.shown * ROW;
    if (whole <= TALLEST) return this.port.scrollTop / ROW;
    const reach = TALLEST - this.port.clientHeight;
    return (this.port.scrollTop / Math.max(1, reach)) * Math.max(0, this.shown - this.fits);
  }

  /** Shows a line in the middle, as soon as it is there. @param {number} number */
  go(number) {
    this.sought = number > this.source.lines ? number : 0;
    if (this.sought) return;
    this.pause();
    if (this.frozen) this.frozen = Math.max(this.frozen, number);
    this.marked = number;
    if (this.only && !this.found.includes(number)) this.narrow(false);
    if (this.picked.length && !this.mine.includes(number)) this.pick([]);
    const place = this.chosen?.indexOf(number) ?? number - 1;
    const top = Math.max(0, place - this.fits / 2);
    const whole = this.shown * ROW;
    if (whole <= TALLEST) this.port.scrollTop = top * ROW;
    else this.port.scrollTop = (top / Math.max(1, this.shown - this.fits)) * (TALLEST - this.port.clientHeight);
    this.draw();
    this.port.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }

  pause() {
    if (!this.following) return;
    this.following = false;
    this.frozen = this.source.lines;
    this.changed();
  }

  toggle() {
    if (this.following) return this.pause();
    this.following = this.live;
    this.narrow(false);
    this.frozen = this.marked = this.sought = 0;
    this.changed();
  }

  scrolled() {
    const end = this.port.scrollHeight - this.port.clientHeight - this.port.scrollTop < ROW * 1.5;
    if (!end && this.following) this.pause();
    this.draw();
  }

  // Drawing

  draw() {
    if (this.pending || this.closed) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const top = this.top;
    const chosen = this.chosen;
    const first = Math.max(1, Math.floor(top) + 1 - OVERSCAN);
    const last = Math.min(this.shown, Math.ceil(top + this.fits) + OVERSCAN);
    const needed = Math.max(0, last - first + 1);
    while (this.layer.childElementCount < needed) this.layer.append(h("div.row", {}, h("span.no"), h("span.text", { dir: "ltr" })));
    while (this.layer.childElementCount > needed) this.layer.lastElementChild?.remove();
    let missing = 0;
    let upto = 0;
    const base = this.port.scrollTop - top * ROW;
    for (let place = 0; place < needed; place += 1) {
      const number = chosen ? chosen[first + place - 1] : first + place;
      const row = this.source.row(number);
      if (!row) {
        missing ||= number;
        upto = number;
      }
      this.drawRow(/** @type {HTMLElement} */ (this.layer.children[place]), number, row, base + (first + place - 1) * ROW);
    }
    this.port.style.setProperty("--digits", String(Math.max(3, String(this.lines).length)));
    if (missing && !this.source.trouble) {
      this.source.want(missing, chosen ? 1 : upto - missing + 1).then((news) => news && this.draw());
    }
  }

  /** @param {HTMLElement} element @param {number} number @param {import("./sources.js").Row | undefined} row @param {number} top */
  drawRow(element, number, row, top) {
    element.style.transform = `translateY(${top}px)`;
    const shown = row ? clean(row.text) : "";
    const tail = row?.size ? ` … (${row.size.toLocaleString("en")} in all)` : "";
    const hit = this.needle && this.found.length ? this.needle : "";
    const look = `${this.marks.get(number) ?? ""} ${row ? severity(shown) : "missing"} ${number === this.marked ? "marked" : ""}`;
    const key = `${number}|${look}|${hit}|${shown}${tail}`;
    if (element.dataset.key === key) return;
    element.dataset.key = key;
    element.className = `row ${look}`;
    const [no, text] = /** @type {[HTMLElement, HTMLElement]} */ (/** @type {unknown} */ (element.children));
    no.textContent = String(number);
    text.replaceChildren(...pieces(shown, hit), tail);
  }

  drawMap() {
    const lines = Math.max(1, this.lines);
    fill(this.map, [...this.marks].filter(([line]) => line <= lines).map(([line, kind]) => {
      const tick = h(`span.${kind}`);
      tick.style.top = `${(100 * (line - 1)) / lines}%`;
      return tick;
    }));
  }

  // Searching

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape" && this.input.value) {
      event.preventDefault();
      this.input.value = "";
      this.seek();
    }
  }

  /** Shows only the lines that were found, or all. @param {boolean} only */
  narrow(only) {
    if (only) this.pause();
    this.only = only && this.found.length > 0;
    this.filter.setAttribute("aria-pressed", String(this.only));
    say(this.filter, this.only ? "All lines" : "Only these");
    this.changed();
    if (!this.only && this.marked) this.go(this.marked);
  }

  async seek() {
    const only = this.only;
    this.narrow(false);
    this.filter.hidden = true;
    this.search.abort();
    const search = (this.search = new AbortController());
    const needle = this.input.value;
    this.needle = needle;
    this.found = [];
    this.place = -1;
    say(this.count, needle ? "…" : "");
    this.draw();
    if (!needle) return;
    try {
      const { found, more } = await this.source.find(needle, search.signal, this.picked);
      if (search.signal.aborted) return;
      this.found = found;
      this.more = more;
      this.filter.hidden = !found.length;
      if (only) this.narrow(true);
      say(this.count, found.length ? plural(found.length, "match", "matches") + (more ? " and more" : "") : "No match");
      this.draw();
    } catch (error) {
      if (!search.signal.aborted) say(this.count, /** @type {Error} */ (error).message);
    }
  }

  /** @param {1 | -1} way */
  step(way) {
    if (!this.found.length) return;
    const here = this.marked || Math.floor(this.top) + 1;
    if (this.place < 0) {
      this.place = this.found.findIndex((line) => line >= here);
      if (this.place < 0) this.place = 0;
    } else {
      this.place = (this.place + way + this.found.length) % this.found.length;
    }
    say(this.count, `${(this.place + 1).toLocaleString("en")} of ${this.found.length.toLocaleString("en")}${this.more ? "+" : ""}`);
    this.go(this.found[this.place]);
  }
}

/** A text with what was searched for marked. @param {string} text @param {string} needle @returns {Node[]} */
function pieces(text, needle) {
  if (!needle) return [document.createTextNode(text)];
  const out = [];
  const low = text.toLowerCase();
  const wanted = needle.toLowerCase();
  let at = 0;
  for (let hit = low.indexOf(wanted); hit >= 0 && out.length < 200; hit = low.indexOf(wanted, at)) {
    out.push(document.createTextNode(text.slice(at, hit)), h("mark", {}, text.slice(hit, hit + needle.length)));
    at = hit + needle.length;
  }
  out.push(document.createTextNode(text.slice(at)));
  return out;
}

/** Marks for a report: every line that proves its cause, and those of the consequences. @param {any} report */
export function marksOf(report) {
  /** @type {Map<number, string>} */
  const marks = new Map();
  for (const verdict of [...(report?.verdicts ?? [])].reverse()) {
    for (const item of verdict.evidence) marks.set(item.line, verdict.role === "cause" ? "cause" : "symptom");
  }
  if (!marks.size && report?.exception) marks.set(report.exception.line, "cause");
  return marks;
}
