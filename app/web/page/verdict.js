// A report in, its verdict for people out: what broke, how sure that is, where the log proves it, and what follows.

import { h } from "./dom.js";
import { clean } from "./clean.js";
import { plural, SAYS, STAGES } from "./words.js";

const WHY = /** @type {Record<string, string>} */ ({
  exception: "the exception", frame: "a frame of its traceback", text: "these words", decisive: "the decisive line", seen: "seen before it",
});

/**
 * @param {any} report as `explain` gives it
 * @param {{stage?: string, reason?: string} | null} live how the verdict stands while the log is written
 * @param {((line: number) => void) | null} jump goes to a line of the log
 * @returns {import("./dom.js").Child}
 */
export function verdictCard(report, live, jump) {
  const verdicts = report?.verdicts ?? [];
  const cause = verdicts.find((/** @type {any} */ each) => each.role === "cause");
  if (!cause) return unknown(report, verdicts, jump);
  const others = verdicts.filter((/** @type {any} */ each) => each !== cause);
  const stage = STAGES[/** @type {keyof typeof STAGES} */ (live?.stage)] ? live?.stage : cause.complete ? "complete" : "incomplete";
  return [
    h("p.over", {}, "Root cause"),
    h("h2.sentence", {}, cause.title),
    h("ul.chips", { "aria-label": "How sure this is" },
      h(`li.chip.sure`, { "data-stage": stage, title: live?.reason }, sureWord(String(stage))),
      (stage !== "complete" && stage !== "incomplete" || !cause.complete) && h("li.chip", {}, cause.complete ? "all conditions hold" : "incomplete: the log does not show all of it"),
      cause.ranks.length > 0 && h("li.chip", {}, `on ${ranksWords(cause.ranks)}`),
      h("li.chip.mono", {}, cause.rule)),
    live?.reason && h("p.reason.dim", {}, `${live.reason[0].toUpperCase()}${live.reason.slice(1)}.`),
    paragraphs(cause.explanation),
    h("h3", {}, "Proof"),
    proof(cause.evidence, jump),
    others.length > 0 && folded("others", `Also in this log: ${alsoWords(others)}`,
      h("ul.plain", {}, others.map((/** @type {any} */ each) => other(each, jump)))),
    printed(report?.advice, jump),
    cause.note && folded("note", "Good to know: what does not help, and why", paragraphs(cause.note)),
    exception(report, jump),
    near(report?.near, "Why not another cause?", jump),
    (cause.references.length > 0 || Object.keys(cause.fixed_in).length > 0) && h("div.refs", {},
      Object.keys(cause.fixed_in).length > 0 && h("p", {}, "Fixed in ", Object.entries(cause.fixed_in).map(([name, version]) => `${name} ${version}`).join(", "), "."),
      cause.references.length > 0 && h("ul.links", { "aria-label": "References" }, cause.references.map((/** @type {string} */ link) => h("li", {}, reference(link))))),
  ];
}

/** @param {any[]} verdicts */
function alsoWords(verdicts) {
  const causes = verdicts.filter((each) => each.role === "cause").length;
  const rest = verdicts.length - causes;
  return [causes && plural(causes, "further cause"), rest && plural(rest, "consequence")].filter(Boolean).join(", ");
}

/** @param {string} stage */
function sureWord(stage) {
  return { early: "Early", refined: "Refined", confirmed: "Confirmed", complete: "Proved by the log", incomplete: "Not wholly proved" }[stage] ?? stage;
}

/** @param {string[]} ranks */
export function ranksWords(ranks) {
  return ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", ");
}

/** @param {any[]} evidence @param {((line: number) => void) | null} jump */
export function proof(evidence, jump) {
  return h("ol.proof", {}, evidence.map((item) =>
    h("li", {},
      jump
        ? h("button.lineno", { type: "button", "data-keep": `line-${item.line}`, title: "Show it in the log", "aria-label": `Line ${item.line}: show it in the log`, onclick: () => jump(item.line) }, item.line)
        : h("span.lineno", {}, item.line),
      h("code", { dir: "ltr" }, clean(item.text.trimStart())),
      h("span.why", {}, WHY[item.why] ?? item.why))));
}

/** @param {any} verdict @param {((line: number) => void) | null} jump */
function other(verdict, jump) {
  const line = verdict.evidence[0]?.line;
  const kind = verdict.role === "cause" ? "another cause" : "a consequence";
  return h("li", {}, line && jump && h("button.lineno", { type: "button", "aria-label": `Line ${line}: show it in the log`, onclick: () => jump(line) }, line),
    h("div", {}, h("strong", {}, verdict.title), " ", h("span.dim", {}, `${kind} · ${verdict.rule}`), paragraphs(verdict.explanation)));
}

/** @param {any} report @param {((line: number) => void) | null} jump */
function exception(report, jump) {
  const raised = report?.exception;
  if (!raised) return null;
  return folded("exception", "The exception as it was raised", [
    h("p.dim", {}, raised.raised_in ? `Raised in ${raised.raised_in}, ` : "", "line ",
      jump ? h("button.lineno", { type: "button", onclick: () => jump(raised.line) }, raised.line) : String(raised.line),
      report.fingerprint ? ` · fingerprint ${report.fingerprint}` : ""),
    h("pre.message", { dir: "ltr", tabindex: "0", "aria-label": "The exception" }, `${raised.type}: ${raised.message}`.split("\n").map((line) => `${clean(line)}\n`)),
  ]);
}

/** What the log itself advises, and what is to be said of it. @param {any[] | undefined} advice @param {((line: number) => void) | null} jump */
function printed(advice, jump) {
  if (!advice?.length) return null;
  return folded("printed", "What the log itself advises", h("ul.plain", {}, advice.map((each) =>
    h("li", {}, jump && h("button.lineno", { type: "button", "aria-label": `Line ${each.line}: show it in the log`, onclick: () => jump(each.line) }, each.line),
      h("div", {}, h("code", { dir: "ltr" }, clean(each.text)), h("p.dim", {}, h("strong", {}, SAYS[each.says] ?? each.says), each.why && `: ${each.why}`))))));
}

/** @param {any[] | undefined} rules @param {string} title @param {((line: number) => void) | null} jump */
function near(rules, title, jump) {
  if (!rules?.length) return null;
  return folded("near", `${title} ${plural(rules.length, "rule")} came near`, h("ul.plain", {}, rules.map((each) =>
    h("li", {}, jump && h("button.lineno", { type: "button", "aria-label": `Line ${each.line}: show it in the log`, onclick: () => jump(each.line) }, each.line),
      h("div", {}, h("code", {}, each.rule), h("p.dim", {}, failed(each.failed)))))));
}

/** A condition that failed: which, and how. @param {string} text @returns {import("./dom.js").Child} */
function failed(text) {
  const [, kind, rest] = /^([a-z_]+): (.*)$/s.exec(text) ?? ["", "", text];
  return [kind && [h("strong", {}, kind), ": "], clean(rest)];
}

/** What is said without a cause. @param {any} report @param {any[]} verdicts @param {((line: number) => void) | null} jump */
function unknown(report, verdicts, jump) {
  const state = report?.state;
  const words = /** @type {Record<string, string>} */ ({
    ready: "The server is ready; nothing in this log stopped it.",
    starting: "Nothing has failed in this log so far.",
    stopped: "The server was stopped from outside; nothing in this log says that it failed.",
  });
  if (state in words && !report.exception) return [h("h2.sentence", {}, report.lines ? words[state] : "The log is empty.")];
  return [
    h("p.over", {}, "Unknown"),
    h("h2.sentence", {}, "No rule names the cause. These are the facts."),
    report?.exception && h("p", {}, h("strong", {}, report.exception.type), ` at line ${report.exception.line}`),
    report?.phase && h("p", {}, `Last phase: ${report.phase.title}.`),
    exception(report, jump),
    verdicts.length > 0 && h("ul.plain", {}, verdicts.map((each) => other(each, jump))),
    printed(report?.advice, jump),
    near(report?.near, "Why no cause?", jump),
  ];
}

/** @param {string} name @param {string} title @param {import("./dom.js").Child} inside */
function folded(name, title, inside) {
  return h("details", { "data-keep": name }, h("summary", {}, title), h("div.fold", {}, inside));
}

/** @param {string} text */
function paragraphs(text) {
  return String(text ?? "").split("\n\n").filter((each) => each.trim()).map((each) => h("p", {}, each.replace(/\s+/g, " ")));
}

/** A link that goes nowhere but to the web. @param {string} link */
export function reference(link) {
  if (!/^https?:\/\//.test(link)) return link;
  const short = link.replace(/^https?:\/\/(www\.)?/, "").replace(/^github\.com\/([^/]+\/[^/]+)\/(?:issues|pull|discussions)\/(\d+).*$/, "$1#$2");
  return h("a", { href: link, target: "_blank", rel: "noreferrer noopener" }, short);
}
