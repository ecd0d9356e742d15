// The events of one target in, the target as it is now out. Pure but for the clock of arrival.

/**
 * @typedef {{id: string, title: string, state: string, done: number | null, total: number | null, seconds: number | null,
 *   left: import("./words.js").Left | null, stragglers: string[], text: string}} Phase
 * @typedef {{name: string, rule: string, title: string, diff: string[], safe: boolean, cost: string, proof: string, argv: string[]}} Offer
 * @typedef {Record<string, any> & {name: string, kind: string, state: string, can: string[], tag: string, phases?: Phase[],
 *   remedies?: Offer[]}} Target
 * @typedef {{id: number, at: number, kind: string, text: string}} Happening
 */

/** What happened that is worth a line in the list. */
const TOLD = new Set([
  "attempt", "adopted", "state", "verdict", "failure", "exit", "again", "stopping", "stop", "ended", "relaunch", "end", "waiting",
  "trouble", "stacks", "health", "process", "watching", "log",
]);
/** After these the target is asked for as a whole: a status on the stream leaves out the report. */
const WHOLE = new Set(["verdict", "remedies", "state", "attempt", "ended", "over", "exit", "failure", "symptom", "again", "stacks"]);
const KEPT = 60;

/** @param {{kind: string, text: string, stage?: string}} news */
function worded({ kind, text, stage }) {
  return kind !== "verdict" || stage === "withdrawn" ? text : `Root cause (${stage}): ${text}`;
}

export class Model {
  constructor() {
    /** @type {Target | null} */
    this.target = null;
    /** When the figures came, in ms as Date.now: clocks run on from there. */
    this.at = 0;
    /** @type {Happening[]} */
    this.happened = [];
  }

  /** Takes one event; whether the whole target should be asked for. @param {string} kind @param {any} data */
  take(kind, data) {
    if (kind === "snapshot") {
      const { news = [], ...target } = data;
      this.whole(target);
      for (const each of news) this.tell(each);
      return false;
    }
    if (kind === "status") {
      const anew = this.target?.tag !== data.tag;
      const kept = anew ? { report: null, lines: [], stacks: [] } : {};
      this.target = { ...this.target, ...kept, ...data };
      this.at = Date.now();
      return anew;
    }
    if (!this.target) return false;
    const news = data.data ?? {};
    if (kind === "progress") {
      this.progress(news);
      this.target = { ...this.target, idle: 0 };
      this.at = Date.now();
    } else if (kind === "phase") this.phase(news);
    else if (kind === "state" && news.state) this.target = { ...this.target, state: news.state };
    this.tell({ ...data, kind, stage: news.stage });
    return WHOLE.has(kind);
  }

  /** Takes what happened into the list, once. @param {Happening & {stage?: string}} news */
  tell(news) {
    if (!TOLD.has(news.kind) || this.happened.some((each) => each.id === news.id)) return;
    this.happened = [...this.happened, { id: news.id, at: news.at, kind: news.kind, text: worded(news) }].sort((a, b) => a.id - b.id).slice(-KEPT);
  }

  /** @param {Target} target */
  whole(target) {
    this.target = target;
    this.at = Date.now();
  }

  /** @param {any} news */
  progress(news) {
    this.change(news.phase, (phase) => ({
      ...phase, state: phase.state === "pending" ? "running" : phase.state, done: news.done ?? phase.done, total: news.total ?? phase.total, left: news.left ?? null,
    }));
  }

  /** @param {any} news */
  phase(news) {
    if (!this.target) return;
    if (news.state === "running") {
      this.target = { ...this.target, phase: news.phase };
      for (const other of this.target.phases ?? []) {
        if (other.state === "running" && other.id !== news.phase && !other.stragglers?.length) {
          this.change(other.id, (phase) => ({ ...phase, state: "done", left: null }));
        }
      }
    }
    this.change(news.phase, (phase) => ({ ...phase, state: news.state, seconds: news.seconds ?? phase.seconds, left: null }));
  }

  /** @param {string} id @param {(phase: Phase) => Phase} how */
  change(id, how) {
    if (!this.target?.phases) return;
    const phases = this.target.phases.map((phase) => (phase.id === id ? how(phase) : phase));
    this.target = { ...this.target, phases };
  }

  /** Seconds since the figures came. */
  get age() {
    return (Date.now() - this.at) / 1000;
  }
}
