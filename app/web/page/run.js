// One attempt of a run that was, out of the store: its verdict, its log, and what it has otherwise than another.

import { ask, get, Problem } from "./api.js";
import { clean } from "./clean.js";
import { add, fill, h } from "./dom.js";
import { dayOf, findingOf, History } from "./history.js";
import { LogView } from "./log.js";
import { command, diff, remedyCards } from "./remedies.js";
import { ServedLog } from "./sources.js";
import { proof } from "./verdict.js";
import { clock, stateWord, timeOfDay } from "./words.js";

export class RunView {
  /** @param {Element} host @param {string} target @param {string} run @param {number} number the attempt @param {import("./main.js").Shell} shell */
  constructor(host, target, run, number, shell) {
    this.target = target;
    this.run = run;
    this.number = number;
    this.closed = false;
    this.view = h("div.view", {}, h("p", {}, h("a", { href: `#/t/${encodeURIComponent(target)}` }, `← ${target}`)), h("h1", {}, `Run ${run}`));
    fill(host, this.view);
    document.title = `Run ${run} – bringup`;
    shell.connection({ state: "open", text: "" }, Date.now());
    this.load();
  }

  close() {
    this.closed = true;
    this.log?.close();
  }

  /** Shows a line of the log, as soon as it is here. @param {number} line */
  go(line) {
    this.sought = line;
    this.log?.go(line);
  }

  async load() {
    try {
      const run = await get(`api/runs/${encodeURIComponent(this.run)}`);
      const attempt = run.attempts.find((/** @type {any} */ each) => each.number === this.number) ?? run.attempts.at(-1);
      if (!this.closed && attempt) await this.show(attempt);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      add(this.view, h("p.trouble", { role: "alert" }, error.message));
    }
  }

  /** @param {any} attempt */
  async show(attempt) {
    const finding = findingOf(attempt);
    const save = h("button.small", { type: "button", onclick: () => this.save(save, `log?attempt=${attempt.number}&raw=true`, `${this.run}-attempt-${attempt.number}.log`) }, "Save the log");
    const pack = h("button.small", { type: "button", onclick: () => this.save(pack, "bundle", `${this.run}.tar.gz`) }, "Save a bundle for an issue");
    const log = h("section.log-part.card", { "aria-label": "Log" });
    const compared = h("section.card", { "aria-label": "Compared" });
    add(this.view, [
      h("section.hero", { "data-state": attempt.state, "aria-label": "Attempt" },
        h("div.hero-top", {}, h("div.hero-state", {}, h("p.state", {}, stateWord(attempt.state)), h("p.line", {}, `Attempt ${attempt.number}`),
          h("span.dim", {}, `${dayOf(attempt.began)} ${timeOfDay(attempt.began)}${attempt.ended ? ` to ${timeOfDay(attempt.ended)}` : ", still running"}`)), h("div.actions", {}, save, pack)),
        attempt.reason && h("p", {}, attempt.reason), attempt.via && h("p", {}, `Started with: ${attempt.via}`), attempt.diff?.length > 0 && diff(attempt.diff),
        h("details", {}, h("summary", {}, "Command line"), command(attempt.argv))),
      finding && h("div.columns", {},
        h("section.verdict.card", { "aria-label": "Verdict" }, h("p.over", {}, "Root cause"), h("h2.sentence", {}, finding.title),
          h("ul.chips", {}, h("li.chip.sure", { "data-stage": finding.stage }, finding.stage), h("li.chip.mono", {}, finding.rule)),
          h("h3", {}, "Proof"), proof(finding.evidence, (line) => this.go(line))),
        finding.remedies.length > 0 && h("section.remedy-part.card", { "aria-label": "What helps" }, remedyCards(finding, [], null))),
      compared, log,
    ]);
    this.compare(compared, attempt);
    const source = new ServedLog(`api/runs/${encodeURIComponent(this.run)}/log`, { attempt: String(attempt.number) });
    this.log = new LogView(log, source);
    this.log.mark(new Map((finding?.evidence ?? []).map((/** @type {any} */ item) => [item.line, "cause"])));
    if (this.sought) this.log.go(this.sought);
    await source.refresh();
    if (!this.closed) this.log.changed();
  }

  /** What differs from an attempt that is chosen. @param {Element} host @param {any} attempt */
  async compare(host, attempt) {
    const others = (await new History(this.target).attempts()).filter((each) => each.run !== this.run || each.number !== attempt.number);
    if (this.closed || !others.length) return host.remove();
    const choice = h("select", { id: "other" }, h("option", { value: "good" }, "the last that served before"),
      others.map((each) => h("option", { value: `${each.run}?other_attempt=${each.number}&` }, `${stateWord(each.state)}, ${dayOf(each.began)} ${timeOfDay(each.began)}, attempt ${each.number}`)));
    const result = h("div", { role: "status" });
    const look = async () => {
      try {
        const [other, query = ""] = choice.value.split("?");
        fill(result, difference(await get(`api/runs/${encodeURIComponent(this.run)}/diff/${other}?${query}attempt=${attempt.number}`)));
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        fill(result, h("p.dim", {}, error.message));
      }
    };
    choice.addEventListener("change", look);
    fill(host, h("div.part-head", {}, h("h2", {}, "Compared"), h("label", { for: "other" }, "with"), choice), result);
    const before = others.find((each) => each.run === this.run && each.number === attempt.number - 1) ?? others.find((each) => each.began < attempt.began)
      ?? others[others.length - 1];
    choice.value = `${before.run}?other_attempt=${before.number}&`;
    await look();
  }

  /** @param {HTMLElement} button @param {string} what @param {string} name */
  async save(button, what, name) {
    const label = button.textContent;
    try {
      const blob = await (await ask(`api/runs/${encodeURIComponent(this.run)}/${what}`)).blob();
      const url = URL.createObjectURL(blob);
      h("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } catch (error) {
      button.textContent = /** @type {Error} */ (error).message;
      setTimeout(() => (button.textContent = label), 4000);
    }
  }
}

/** @param {any} found what differs @returns {import("./dom.js").Child} */
function difference(found) {
  const pairs = [...Object.entries(found.env), ...Object.entries(found.versions)];
  const phases = found.phases.filter((/** @type {any} */ each) => each.seconds !== null || each.other !== null);
  const time = (/** @type {number | null} */ seconds) => (seconds === null ? "–" : clock(seconds));
  return [
    found.argv.length ? diff(found.argv) : h("p.dim", {}, "The command line is the same."),
    pairs.length > 0 && h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Variables and versions" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Variable or version", "this one", "the other"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, pairs.map(([name, [now, then]]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, clean(String(now ?? "–"))), h("td", {}, clean(String(then ?? "–")))))))),
    phases.length > 0 && h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Phase times" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Phase", "this one", "the other"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, phases.map((/** @type {any} */ each) => h("tr", {}, h("th", { scope: "row" }, each.title), h("td", {}, time(each.seconds)), h("td", {}, time(each.other))))))),
  ];
}
