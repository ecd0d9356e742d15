// The phases of a start in, a timeline out: one row a phase, its bar where and as long as it ran; what is usual, from
// earlier starts, drawn faintly behind.

import { fill, h, say } from "./dom.js";
import { clock, leftWords, plural, SOURCES, spoken } from "./words.js";

/** @typedef {import("./model.js").Phase} Phase */

/** What is said of the phase that a start did not get beyond. @type {Record<string, string>} */
const OVER = { crashed: "failed here", stalled: "stands still here", stopped: "stopped here" };

export class Timeline {
  /** @param {Element} host */
  constructor(host) {
    this.host = host;
    this.rows = /** @type {Map<string, any>} */ (new Map());
    this.list = h("ol.phases");
    this.rest = h("p.rest.dim");
    this.summary = h("p.dim");
    this.key = h("p.key.dim", { hidden: true }, h("span.usual-mark", { "aria-hidden": "true" }), "as long as it usually takes");
    fill(host, h("div.part-head", {}, h("h2", {}, "Start-up"), this.summary, this.key), this.list, this.rest);
  }

  /** @param {any} target @param {number} age seconds since its figures came */
  show(target, age) {
    /** @type {Phase[]} */
    const phases = target.phases ?? [];
    const usual = target.usual ?? {};
    const live = target.state === "starting";
    const counts = live || target.state === "stalled";
    const reached = phases.findLastIndex((phase) => phase.state !== "pending");
    const awaited = (/** @type {Phase} */ phase) => live && phase.state === "pending" && usual[phase.id] > 0 && phases.indexOf(phase) > reached;
    const shown = phases.filter((phase) => ["running", "done", "skipped"].includes(phase.state) || awaited(phase));
    let at = 0;
    let before = 0;
    const places = shown.map((phase) => {
      const running = phase.state === "running";
      const took = (phase.seconds ?? 0) + (running && counts ? age : 0);
      const left = running && live ? (phase.left?.seconds ?? 0) : 0;
      const place = { phase, start: at, took, left, usualStart: phase.state === "pending" ? Math.max(before, at) : before, usual: Number(usual[phase.id] ?? 0) };
      at += took + left;
      before = place.usualStart + place.usual;
      return place;
    });
    const all = Math.max(at, before, 1);
    for (const [id, row] of this.rows) if (!shown.some((phase) => phase.id === id)) (row.item.remove(), this.rows.delete(id));
    places.forEach((place, index) => {
      let row = this.rows.get(place.phase.id);
      if (!row) this.rows.set(place.phase.id, (row = newRow(place.phase.title)));
      if (this.list.children[index] !== row.item) this.list.insertBefore(row.item, this.list.children[index] ?? null);
      this.draw(row, place, all, target.state);
    });
    const coming = phases.filter((phase) => phase.state === "pending" && !awaited(phase));
    const names = coming.map((phase) => phase.title);
    say(this.rest, live && names.length ? `May still come: ${names.join(", ")}` : "");
    this.rest.hidden = !this.rest.textContent;
    this.key.hidden = !places.some((place) => place.usual > 0);
    const done = places.filter((place) => place.phase.state === "done").length;
    const sum = places.reduce((total, place) => total + place.took, 0);
    say(this.summary, shown.length ? `${plural(done, "phase")} done, ${spoken(sum)} in all` : "No phase has been seen yet.");
  }

  /** @param {any} row @param {any} place @param {number} all seconds that the whole width stands for @param {string} state */
  draw(row, place, all, state) {
    const { phase, start, took, left } = place;
    const failed = phase.state === "running" && state in OVER;
    const look = failed ? (state === "crashed" ? "failed" : state) : phase.state;
    row.item.dataset.state = look;
    const share = (/** @type {number} */ seconds) => `${(100 * seconds) / all}%`;
    row.usual.hidden = !place.usual;
    row.usual.style.left = share(place.usualStart);
    row.usual.style.width = share(place.usual);
    row.bar.style.left = `min(${share(start)}, 100% - 4px)`;
    row.bar.style.width = `max(${share(took + left)}, 4px)`;
    row.bar.hidden = phase.state === "skipped" || phase.state === "pending";
    const counted = phase.total ? Math.min(1, (phase.done ?? 0) / phase.total) : left ? took / (took + left) : null;
    row.fill.style.width = phase.state === "running" && counted !== null ? `${100 * counted}%` : "100%";
    row.item.dataset.open = String(phase.state === "running" && !failed && counted === null);
    const count = phase.total ? `${phase.done ?? 0} of ${phase.total}` : "";
    if (phase.state === "skipped") return this.words(row, "skipped", phase.text, look);
    if (phase.state === "pending") return this.words(row, `~${clock(place.usual)}`, "", look);
    const time = phase.seconds === null && phase.state !== "running" ? "" : clock(took);
    const more = phase.state === "running" && !failed && phase.left && phase.left.seconds >= 1 ? `${leftWords(phase.left)} left` : "";
    const waits = phase.stragglers?.length ? `waiting for ${phase.stragglers.join(", ")}` : "";
    this.words(row, time, [failed ? OVER[state] : "", phase.state === "running" ? count : "", more, waits].filter(Boolean).join(" · "), look);
    row.item.title = phase.left && !failed ? `Estimate ${SOURCES[phase.left.source] ?? ""}` : phase.text || "";
  }

  /** @param {any} row @param {string} time @param {string} note @param {string} look */
  words(row, time, note, look) {
    say(row.time, time);
    say(row.note, note);
    say(row.word, `, ${look === "pending" ? "still to come, usually" : look}${note ? ": " : ""}`);
  }
}

/** @param {string} title */
function newRow(title) {
  const row = /** @type {any} */ ({
    usual: h("span.usual"), fill: h("span.fill"), time: h("span.time"), note: h("span.note"), word: h("span.quiet"),
  });
  row.bar = h("span.bar", {}, row.fill);
  const track = h("span.track", { "aria-hidden": "true" }, row.usual, row.bar);
  row.item = h("li.phase", {}, h("span.name", {}, h("span.mark", { "aria-hidden": "true" }), title, row.word), row.note, track, row.time);
  return row;
}
