// A log in, its lines by number out: one that the service has, asked for range by range, or one that stands here.

import { ask, get, Problem } from "./api.js";
import { drawn, WIDTH } from "./clean.js";

/** @typedef {{text: string, size: number}} Row `size` is the length of the whole line where it was cut, else 0 */

const PAGE = 200;
const KEPT = 20_000;
/** Places found after which a search is not carried on. */
export const FOUND = 5000;

/** A log that the service has: of a target's current attempt, or of an attempt that was. */
export class ServedLog {
  /** @param {string} path of the log in the API @param {Record<string, string>} [more] what is asked with every request */
  constructor(path, more = {}) {
    this.path = path;
    this.more = more;
    this.lines = 0;
    this.log = "";
    /** @type {Map<number, Row>} */
    this.rows = new Map();
    this.trouble = "";
    this.asking = false;
  }

  /** @param {number} number @returns {Row | undefined} */
  row(number) {
    return this.rows.get(number);
  }

  /** Looks how long it is by now; whether anything is new. @returns {Promise<boolean>} */
  async refresh() {
    return this.load(Math.max(1, this.lines), PAGE);
  }

  /** Has the lines of a range at hand; whether anything is new. @param {number} first @param {number} count */
  async want(first, count) {
    const from = Math.max(1, first - (first % PAGE));
    return this.load(from, Math.min(1000, count + first - from + PAGE));
  }

  /** @param {number} first @param {number} count @returns {Promise<boolean>} */
  async load(first, count) {
    if (this.asking) return false;
    this.asking = true;
    try {
      const answer = await get(`${this.path}?${new URLSearchParams({ ...this.more, from: String(first), count: String(count) })}`);
      const anew = answer.log !== this.log || answer.lines < this.lines;
      if (anew) this.rows.clear();
      const before = `${this.log} ${this.lines} ${this.rows.size} ${this.trouble} ${this.rows.get(this.lines)?.text}`;
      this.log = answer.log;
      this.lines = answer.lines;
      for (const { number, text, size } of answer.rows) this.rows.set(number, { text, size });
      this.trouble = "";
      for (const number of this.rows.keys()) {
        if (this.rows.size <= KEPT) break;
        this.rows.delete(number);
      }
      return before !== `${this.log} ${this.lines} ${this.rows.size}  ${this.rows.get(this.lines)?.text}`;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      const before = this.trouble;
      this.trouble = error.message;
      if (error.status === 404) {
        this.lines = 0;
        this.rows.clear();
      }
      return before !== this.trouble;
    } finally {
      this.asking = false;
    }
  }

  /**
   * The numbers of the lines that hold a text, and are of one of some ranks where any are named.
   * @param {string} text @param {AbortSignal} signal @param {string[]} [ranks] "" is no rank
   * @returns {Promise<{found: number[], more: boolean}>}
   */
  async find(text, signal, ranks = []) {
    /** @type {number[]} */
    const found = [];
    let from = 1;
    while (found.length < FOUND) {
      const answer = await this.look({ text, ranks, from, count: 1000 }, signal);
      found.push(...answer.found);
      if (answer.more === null) return { found, more: false };
      from = answer.more;
    }
    return { found, more: true };
  }

  /**
   * A part of a search: what was found, where to go on (null at the end), and how many lines there were then.
   * @param {{text?: string, ranks: string[], from: number, count: number}} wanted @param {AbortSignal} signal
   * @returns {Promise<{found: number[], more: number | null, lines: number}>}
   */
  async look({ text, ranks, from, count }, signal) {
    const query = new URLSearchParams({ ...this.more, from: String(from), count: String(count) });
    if (text) query.set("text", text);
    for (const rank of ranks) query.append("rank", rank);
    return (await ask(`${this.path}/find?${query}`, { signal })).json();
  }

  /**
   * How many lines are of each rank, told as it becomes known.
   * @param {(counts: Map<string, number>, over: boolean) => void} tell @param {AbortSignal} signal
   */
  async ranks(tell, signal) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (let from = 1; from; ) {
      const query = new URLSearchParams({ ...this.more, from: String(from) });
      const answer = await (await ask(`${this.path}/ranks?${query}`, { signal })).json();
      for (const { rank, lines } of answer.ranks) counts.set(rank, (counts.get(rank) ?? 0) + lines);
      from = answer.more ?? 0;
      tell(counts, !from);
    }
  }
}

/** A log that stands in this page. */
export class LocalLog {
  /** @param {string} text */
  constructor(text) {
    this.all = text.split("\n");
    if (this.all.at(-1) === "") this.all.pop();
    this.lines = this.all.length;
    this.log = "local";
    this.trouble = "";
  }

  /** @param {number} number @returns {Row | undefined} */
  row(number) {
    const text = this.all[number - 1];
    if (text === undefined) return undefined;
    const shown = drawn(text);
    return { text: shown, size: shown.length > WIDTH ? shown.length : 0 };
  }

  async refresh() {
    return false;
  }

  async want() {
    return false;
  }

  /** @param {string} text @returns {Promise<{found: number[], more: boolean}>} */
  async find(text) {
    const wanted = text.toLowerCase();
    /** @type {number[]} */
    const found = [];
    for (let place = 0; place < this.all.length; place += 1) {
      if (this.all[place].toLowerCase().includes(wanted)) found.push(place + 1);
      if (found.length >= FOUND) return { found, more: true };
    }
    return { found, more: false };
  }
}
