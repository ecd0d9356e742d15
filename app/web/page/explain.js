// A dropped or pasted log in, its verdict out. It goes to this bringup to be read, which keeps nothing of it.

import { ask, Problem } from "./api.js";
import { fill, h } from "./dom.js";
import { LogView, marksOf } from "./log.js";
import { remedyCards } from "./remedies.js";
import { LocalLog } from "./sources.js";
import { verdictCard } from "./verdict.js";
import { plural, stateWord } from "./words.js";

/** Bytes up to which the log is also shown here. */
const SHOWN = 128 * 1024 * 1024;

export class Explain {
  /** @param {Element} host @param {import("./main.js").Shell} shell */
  constructor(host, shell) {
    this.shell = shell;
    this.closed = false;
    this.control = new AbortController();
    this.text = h("textarea", { id: "pasted", rows: "7", spellcheck: "false", placeholder: "Paste a log here, or drop a file anywhere on this page." });
    this.file = h("input.quiet", { type: "file", id: "file", onchange: () => this.file.files?.[0] && this.read(this.file.files[0], this.file.files[0].name) });
    this.argv = h("input", { id: "argv", spellcheck: "false", placeholder: "python -m sglang.launch_server …" });
    this.version = h("input", { id: "version", spellcheck: "false", placeholder: "0.5.9" });
    this.gpu = h("input", { id: "gpu", spellcheck: "false", placeholder: "sm120" });
    this.status = h("p.status", { role: "status" });
    this.result = h("div.result");
    fill(host, h("div.view.explain", {}, h("h1", {}, "Explain a log"),
      h("form.card.drop", { onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), this.pasted()) },
        h("label", { for: "pasted" }, "The log"), this.text,
        h("details", {}, h("summary", {}, "What the log may not tell"),
          h("div.fields", {},
            h("label", { for: "argv" }, "Command line"), this.argv, h("label", { for: "version" }, "Engine version"), this.version, h("label", { for: "gpu" }, "GPU"), this.gpu)),
        h("div.buttons", {}, h("p.dim.grow", {}, "A file may be gzip. It is read by this bringup and nothing of it is kept."),
          this.file, h("label.button", { for: "file" }, "Choose a file…"), h("button.primary", {}, "Explain"))),
      this.status, this.result));
    this.zone = host;
    this.listeners = /** @type {[string, (event: any) => void][]} */ ([
      ["dragover", (event) => (event.preventDefault(), document.body.classList.add("dropping"))],
      ["dragleave", (event) => event.relatedTarget === null && document.body.classList.remove("dropping")],
      ["drop", (event) => this.dropped(event)],
    ]);
    for (const [kind, listener] of this.listeners) addEventListener(kind, listener);
    document.title = "Explain a log – bringup";
    shell.connection({ state: "open", text: "" }, Date.now());
  }

  close() {
    this.closed = true;
    this.control.abort();
    this.log?.close();
    document.body.classList.remove("dropping");
    for (const [kind, listener] of this.listeners) removeEventListener(kind, listener);
  }

  /** @param {DragEvent} event */
  dropped(event) {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const file = event.dataTransfer?.files[0];
    const text = event.dataTransfer?.getData("text/plain");
    if (file) this.read(file, file.name);
    else if (text) this.read(new Blob([text]), "dropped text");
  }

  pasted() {
    const text = this.text.value;
    if (text.trim()) this.read(new Blob([text]), "pasted text");
    else this.text.focus();
  }

  /** @param {Blob} log @param {string} name */
  async read(log, name) {
    this.control.abort();
    const control = (this.control = new AbortController());
    this.log?.close();
    fill(this.result);
    this.status.className = "status";
    this.status.textContent = `Reading ${name} …`;
    const query = new URLSearchParams();
    for (const [key, input] of Object.entries({ argv: this.argv, engine_version: this.version, gpu: this.gpu })) {
      if (input.value.trim()) query.set(key, input.value.trim());
    }
    try {
      const answer = await ask(`api/explain?${query}`, { method: "POST", body: log, signal: control.signal, headers: { "content-type": "application/octet-stream" } });
      const report = await answer.json();
      const text = log.size <= SHOWN ? await textOf(log) : null;
      if (control.signal.aborted) return;
      this.show(report, text, name);
    } catch (error) {
      if (control.signal.aborted) return;
      this.status.className = "status trouble";
      this.status.textContent = error instanceof Problem ? error.message : `${name} cannot be read: ${/** @type {Error} */ (error).message}`;
    } finally {
      this.file.value = "";
    }
  }

  /** @param {any} report @param {string | null} text @param {string} name */
  show(report, text, name) {
    const engine = [report.engine.name ?? "engine not known", report.engine.version ?? report.engine.releases].filter(Boolean).join(" ");
    const phase = report.phase ? `in ${report.phase.title}` : "";
    this.status.textContent = [name, engine, stateWord(report.state).toLowerCase(), phase, plural(report.lines, "line")].filter(Boolean).join(" · ");
    const cause = report.verdicts.find((/** @type {any} */ each) => each.role === "cause");
    const logPart = h("section.log-part.card", { "aria-label": "Log" });
    fill(this.result,
      report.earlier.length > 0 && h("p.dim", {}, `${plural(report.earlier.length, "earlier start")} in this log; this is about the last one.`),
      h("div.columns", {},
        h("section.verdict.card", { "aria-label": "Verdict", "data-state": report.state }, verdictCard(report, null, text === null ? null : (line) => this.log?.go(line))),
        cause && h("section.remedy-part.card", { "aria-label": "What helps" }, remedyCards(cause, [], null))),
      text !== null && logPart);
    if (text === null) return;
    this.log = new LogView(logPart, new LocalLog(text));
    this.log.mark(marksOf(report));
    const first = this.log.proofs()[0];
    if (first) requestAnimationFrame(() => this.log && (this.log.go(Math.min(...this.log.proofs())), this.result.scrollIntoView({ block: "start" })));
  }
}

/** The text of a log, unpacked where it is gzip; null when it unpacks to more than is shown. @param {Blob} log */
async function textOf(log) {
  const head = new Uint8Array(await log.slice(0, 2).arrayBuffer());
  if (head[0] !== 0x1f || head[1] !== 0x8b) return log.text();
  const reader = log.stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
    if (text.length > SHOWN) {
      await reader.cancel();
      return null;
    }
  }
}
