// A target's event stream in, its events out, for as long as it is wanted: a stream that breaks is opened again where
// it broke, and who reads is told. `fetch` and not EventSource, which cannot send a token.

import { ask, Problem, targetPath } from "./api.js";

/** Seconds without a byte after which a stream counts as broken; the service sends something every 10. */
const SILENT = 25;
const PAUSES = [0.3, 1, 2, 4, 8];

/** @typedef {{state: "open" | "lost" | "ended" | "refused", text: string, again?: number}} Link */

export class Stream {
  /**
   * @param {string} name the target's
   * @param {(kind: string, data: any) => void} onEvent
   * @param {(link: Link) => void} onLink `again` is when the next try comes (ms, as Date.now)
   */
  constructor(name, onEvent, onLink) {
    this.path = `${targetPath(name)}/events`;
    this.onEvent = onEvent;
    this.onLink = onLink;
    this.last = "";
    this.failures = 0;
    this.over = false;
    /** @type {AbortController | null} */
    this.control = null;
    this.wake = () => {};
    this.retry = () => this.wake();
    addEventListener("online", this.retry);
    this.run();
  }

  close() {
    this.over = true;
    removeEventListener("online", this.retry);
    this.control?.abort();
    this.wake();
  }

  async run() {
    while (!this.over) {
      /** @type {Link} */
      let link = { state: "lost", text: "The connection broke." };
      try {
        link = (await this.read()) ?? link;
      } catch (error) {
        if (error instanceof Problem) {
          if (error.status === 401 || error.status === 404) link = { state: "refused", text: error.message };
          else link = { state: "lost", text: error.status ? error.message : "bringup does not answer." };
        }
      }
      if (this.over) return;
      const pause = PAUSES[Math.min(this.failures, PAUSES.length - 1)] * 1000;
      this.failures += 1;
      this.onLink({ ...link, again: Date.now() + pause });
      await new Promise((done) => {
        const timer = setTimeout(done, pause);
        this.wake = () => (clearTimeout(timer), done(null));
      });
    }
  }

  /** Reads one stream to its end. @returns {Promise<Link | undefined>} why it ended, where it said so */
  async read() {
    const control = (this.control = new AbortController());
    let watch = setTimeout(() => control.abort(), SILENT * 1000);
    try {
      const headers = this.last ? { "last-event-id": this.last } : undefined;
      const answer = await ask(this.path, { headers, signal: control.signal });
      const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
      const decoder = new TextDecoder();
      let text = "";
      /** @type {Link | undefined} */
      let end;
      for (;;) {
        const { done, value } = await reader.read();
        if (done || this.over) return end;
        clearTimeout(watch);
        watch = setTimeout(() => control.abort(), SILENT * 1000);
        text += decoder.decode(value, { stream: true });
        const blocks = text.split("\n\n");
        text = /** @type {string} */ (blocks.pop());
        for (const block of blocks) end = this.take(block) ?? end;
      }
    } finally {
      clearTimeout(watch);
      control.abort();
    }
  }

  /** One event. @param {string} block @returns {Link | undefined} */
  take(block) {
    let kind = "";
    let data = "";
    let id = "";
    for (const row of block.split("\n")) {
      if (row.startsWith("event: ")) kind = row.slice(7);
      else if (row.startsWith("data: ")) data += row.slice(6);
      else if (row.startsWith("id: ")) id = row.slice(4);
    }
    if (id) this.last = id;
    if (!kind) return undefined;
    const value = JSON.parse(data);
    if (kind === "bye") return { state: "ended", text: "bringup has ended." };
    if (kind === "dropped") return { state: "lost", text: `Dropped: ${value.reason}.` };
    if (kind === "snapshot") {
      this.failures = 0;
      this.onLink({ state: "open", text: "" });
    }
    this.onEvent(kind, value);
    return undefined;
  }
}
