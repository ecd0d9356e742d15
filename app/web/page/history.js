// What the store keeps of a target in, its attempts over the last runs out: verdicts, what was changed, and their phase
// times side by side.

import { get } from "./api.js";
import { h } from "./dom.js";
import { diff } from "./remedies.js";
import { clock, spoken, stateWord, timeOfDay } from "./words.js";

const RUNS = 10;
const COLOURS = 8;

/**
 * One attempt of one run, and what a row shows of it.
 * @typedef {{run: string, number: number, state: string, began: number, ended: number | null, title: string, via: string | null,
 *   diff: string[], phases: {phase: string, title: string, seconds: number | null}[]}} Attempt
 */

export class History {
  /** @param {string} name the target's */
  constructor(name) {
    this.path = `api/targets/${encodeURIComponent(name)}/runs?count=${RUNS}`;
    /** Runs that are over do not change. @type {Map<string, any>} */
    this.over = new Map();
  }

  /** Attempts of the last runs, newest first. Problem where there is no store. @returns {Promise<Attempt[]>} */
  async attempts() {
    const { runs } = await get(this.path);
    const whole = await Promise.all(runs.map((/** @type {any} */ run) => this.over.get(run.id) ?? get(`api/runs/${run.id}`)));
    for (const run of whole) if (run.ended) this.over.set(run.id, run);
    return whole.flatMap((run) => [...run.attempts].reverse().map((attempt) => ({
      run: run.id, number: attempt.number, state: attempt.state, began: attempt.began, ended: attempt.ended, via: attempt.via,
      diff: attempt.diff ?? [], phases: attempt.phases ?? [],
      title: findingOf(attempt)?.title ?? (attempt.state === "ready" ? "It became ready." : attempt.reason || ""),
    })));
  }
}

/** The finding of an attempt that stands: the last that was not taken back. @param {any} attempt @returns {any} */
export function findingOf(attempt) {
  const rule = attempt.rule;
  const mine = (attempt.verdicts ?? []).filter((/** @type {any} */ each) => each.rule === rule && each.stage !== "withdrawn");
  if (!mine.length) return null;
  const most = (/** @type {string} */ name) => mine.reduce((/** @type {any[]} */ best, /** @type {any} */ each) => ((each[name] ?? []).length > best.length ? each[name] : best), []);
  return { ...mine.at(-1), evidence: most("evidence"), remedies: most("remedies") };
}

/** @param {string} target @param {Attempt[]} attempts @returns {import("./dom.js").Child} */
export function historyList(target, attempts) {
  const names = /** @type {Map<string, string>} */ (new Map());
  for (const each of [...attempts].reverse()) for (const phase of each.phases) if (phase.seconds) names.set(phase.phase, phase.title);
  const order = [...names.keys()];
  const totals = attempts.map(total);
  const longest = Math.max(1, ...totals);
  const used = order.filter((name) => attempts.some((each) => each.phases.some((phase) => phase.phase === name && share(phase, longest) > 0.01)));
  return [
    h("div.part-head", {}, h("h2", {}, "Last attempts"), used.length > 0 && h("ul.legend", { "aria-hidden": "true" },
      used.map((name) => h("li", {}, h(`span.swatch.p${order.indexOf(name) % COLOURS}`), names.get(name))))),
    h("ol.history", {}, attempts.map((each, place) => h("li", {},
      h("span.badge", { "data-state": each.state }, stateWord(each.state)),
      h("div.what", {},
        h("a", { href: `#/t/${encodeURIComponent(target)}/run/${each.run}/${each.number}`, "data-keep": `${each.run}-${each.number}` }, `${dayOf(each.began)} ${timeOfDay(each.began)}`),
        h("span.dim", {}, each.number > 1 ? ` attempt ${each.number}` : "", each.via ? ` · ${each.via}` : ""),
        each.title && h("p", {}, each.title), each.diff.length > 0 && diff(each.diff)),
      h("div.stack", { title: each.phases.filter((phase) => phase.seconds).map((phase) => `${phase.title} ${clock(phase.seconds ?? 0)}`).join("\n"), "aria-hidden": "true" },
        each.phases.map((phase) => segment(phase, longest, order))),
      h("span.time", {}, totals[place] ? clock(totals[place]) : "", h("span.quiet", {}, totals[place] ? ` of phases, ${spoken(totals[place])}` : ""))))),
  ];
}

/** @param {Attempt} attempt */
function total(attempt) {
  return attempt.phases.reduce((sum, phase) => sum + (phase.seconds ?? 0), 0);
}

/** @param {{seconds: number | null}} phase @param {number} longest */
function share(phase, longest) {
  return (phase.seconds ?? 0) / longest;
}

/** @param {{phase: string, seconds: number | null}} phase @param {number} longest @param {string[]} order */
function segment(phase, longest, order) {
  if (!phase.seconds) return null;
  const element = h(`span.p${order.indexOf(phase.phase) % COLOURS}`);
  element.style.width = `${100 * share(phase, longest)}%`;
  return element;
}

/** "today" or the date. @param {number} at seconds since 1970 */
export function dayOf(at) {
  const day = new Date(at * 1000);
  const today = new Date();
  return day.toDateString() === today.toDateString() ? "today" : day.toLocaleDateString("en-CA");
}
