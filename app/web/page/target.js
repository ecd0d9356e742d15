// One target: its stream in, everything about it on the page out.

import { get, Problem, targetPath } from "./api.js";
import { confirmed } from "./dialogs.js";
import { fill, h, Part, say } from "./dom.js";
import { History, historyList } from "./history.js";
import { LogView, marksOf } from "./log.js";
import { Model } from "./model.js";
import { command, diff, remedyCards } from "./remedies.js";
import { ServedLog } from "./sources.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";
import { verdictCard } from "./verdict.js";
import { clean } from "./clean.js";
import { ago, leftWords, measure, plural, spoken, SOURCES, stateWord, timeOfDay, UNSHOWN } from "./words.js";

/** How often the log is looked at, in ms, while it grows and when it should not. */
const QUICK = 400;
const SLOW = 3000;
/** The figures that change with the clock, in their order. */
const CLOCKS = ["until", "phase", "since", "idle"];
/** After these there is more to tell of this run. */
const REMEMBERED = new Set(["attempt", "ended", "over", "state", "verdict", "snapshot"]);

export class TargetView {
  /** @param {Element} host @param {string} name @param {import("./main.js").Shell} shell */
  constructor(host, name, shell) {
    this.host = host;
    this.name = name;
    this.shell = shell;
    this.model = new Model();
    this.told = { state: "", rule: "" };
    /** The last good launch, other than the current one. @type {any} */
    this.good = null;
    this.goodFor = "";
    this.closed = false;
    const section = (/** @type {string} */ name, /** @type {string} */ label) => h(`section.${name}`, { "aria-label": label });
    const bar = h("span.fill");
    this.hero = {
      state: h("p.state", {}, "…"), line: h("p.line"), bar, track: h("div.meter", { "aria-hidden": "true", hidden: true }, bar), where: h("p.where.dim"),
      figures: h("dl.figures"), memory: h("dl.figures", { "aria-label": "Memory, as the log gives it" }), actions: h("div.actions"), command: h("div"),
    };
    this.figures = /** @type {Map<string, any>} */ (new Map());
    this.parts = {
      hero: h("section.hero", { "aria-label": "State" },
        h("div.hero-top", {}, h("div", {}, h("h1", {}, this.name), this.hero.where), this.hero.actions),
        h("div.hero-state", {}, this.hero.state, this.hero.line), this.hero.track, this.hero.figures, this.hero.memory, this.hero.command),
      trouble: h("section.card.trouble-card", { "aria-label": "Trouble", hidden: true }),
      verdict: section("verdict.card", "Verdict"), remedies: section("remedy-part.card", "What helps"),
      timeline: section("timeline.card", "Start-up"), log: section("log-part.card", "Log"),
      history: h("section.card.history-part", { "aria-label": "Last attempts", hidden: true }),
      attempts: section("attempts.card", "Attempts"), news: section("news.card", "What happened"),
    };
    this.columns = h("div.columns", {}, this.parts.verdict, this.parts.remedies);
    fill(this.host, h("div.view", {}, this.parts.hero, this.parts.trouble, this.columns, this.parts.timeline, this.parts.log, this.parts.history,
      h("div.columns.even", {}, this.parts.attempts, this.parts.news)));
    this.timeline = new Timeline(this.parts.timeline);
    this.verdict = new Part(this.parts.verdict, ({ report, live }) => verdictCard(report, live, (line) => this.log.go(line)));
    this.remedies = new Part(this.parts.remedies, ({ cause, offers, can }) =>
      remedyCards(cause, offers, can ? (offer) => this.restart(offer) : null));
    this.actions = new Part(this.hero.actions, ({ can, state, good }) => this.buttons(can, state, good));
    this.argv = new Part(this.hero.command, (argv) => argv?.length && h("details", { "data-keep": "argv" }, h("summary", {}, "Command line"), command(argv)));
    this.attempts = new Part(this.parts.attempts, (rows) => attemptsTable(rows));
    this.history = new Part(this.parts.history, (rows) => historyList(this.name, rows));
    this.news = new Part(this.parts.news, (rows) => newsList(rows));
    this.trouble = new Part(this.parts.trouble, (/** @type {any} */ value) => troubleCard(value));
    this.source = new ServedLog(`${targetPath(name)}/log`);
    this.kept = new History(name);
    this.hasHistory = false;
    this.log = new LogView(this.parts.log, this.source, { live: true });
    this.stream = new Stream(name, (kind, data) => this.event(kind, data), (link) => this.link(link));
    this.remember();
    this.timer = setInterval(() => this.tick(), 500);
    this.poll();
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    clearTimeout(this.pollTimer);
    clearTimeout(this.askTimer);
    clearTimeout(this.historyTimer);
    this.stream.close();
    this.log.close();
  }

  /** @param {string} kind @param {any} data */
  event(kind, data) {
    const whole = this.model.take(kind, data);
    if (whole) this.ask();
    if (REMEMBERED.has(kind)) this.remember();
    this.show();
  }

  /** @param {import("./stream.js").Link} link */
  link(link) {
    this.lost = link.state !== "open";
    this.host.firstElementChild?.classList.toggle("stale", this.lost);
    this.shell.connection(link, this.model.at);
    if (link.state === "open") this.ask();
  }

  /** Asks for the target as a whole, a moment later, once. */
  ask() {
    clearTimeout(this.askTimer);
    this.askTimer = setTimeout(async () => {
      try {
        const target = await get(targetPath(this.name));
        if (this.closed) return;
        this.model.whole(target);
        this.show();
      } catch (error) {
        if (!(error instanceof Problem)) throw error; // the stream tells that the connection is lost
      }
    }, 60);
  }

  /** Asks for what is kept of earlier attempts, a moment later, once. Without a store there is nothing to show. */
  remember() {
    clearTimeout(this.historyTimer);
    this.historyTimer = setTimeout(async () => {
      try {
        const attempts = await this.kept.attempts();
        if (this.closed) return;
        this.hasHistory = attempts.length > 0;
        this.parts.history.hidden = !this.hasHistory;
        this.history.show(attempts);
        this.show();
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
      }
    }, 300);
  }

  /** Asks which launch became ready last, once for each attempt and state. @param {any} target */
  async askGood(target) {
    const now = `${target.tag} ${target.state}`;
    if (now === this.goodFor || !target.can.includes("restart")) return;
    this.goodFor = now;
    try {
      this.good = (await get(`${targetPath(this.name)}/last-good`)).last_good;
      this.show();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.goodFor = "";
    }
  }

  async poll() {
    const target = this.model.target;
    const busy = !target || (target.state === "starting" || target.state === "ready" || target.idle < 5);
    if (!document.hidden && !this.lost) {
      if (await this.source.refresh()) this.log.changed();
    }
    if (!this.closed) this.pollTimer = setTimeout(() => this.poll(), busy ? QUICK : SLOW);
  }

  // Drawing

  show() {
    const target = this.model.target;
    if (!target || this.closed) return;
    const state = target.state;
    this.parts.hero.dataset.state = state;
    say(this.hero.state, stateWord(state));
    const gpu = [target.gpu?.name, target.gpu?.sm].filter(Boolean).join(" ");
    const engine = [target.engine?.name, target.engine?.version ?? target.engine?.releases].filter(Boolean).join(" ");
    const attempt = target.kind === "log" ? "a log that is only followed" : target.attempt ? `attempt ${target.attempt}` : "";
    say(this.hero.where, [engine, gpu, attempt, target.run ? `run ${target.run}` : ""].filter(Boolean).join(" · "));
    const report = target.report;
    const cause = report?.verdicts?.find((/** @type {any} */ each) => each.role === "cause");
    const failed = state === "crashed" || state === "stalled";
    const named = Boolean(cause) || (failed && report && !target.verdict);
    this.columns.hidden = !named;
    this.parts.remedies.hidden = !cause;
    if (named) this.verdict.show({ report: cause ? report : { ...report, state }, live: target.verdict && { stage: target.verdict.stage, reason: target.verdict.reason } });
    if (cause) this.remedies.show({ cause, offers: target.remedies ?? [], can: target.can.includes("restart") });
    this.log.mark(named ? marksOf(report) : new Map());
    this.actions.show({ can: target.can, state, good: this.good?.title ?? "" });
    this.askGood(target);
    this.argv.show(target.argv);
    this.trouble.show({ trouble: target.trouble ?? null, stacks: target.stacks ?? [] });
    this.parts.trouble.hidden = !this.parts.trouble.childElementCount;
    const attempts = target.attempts ?? [];
    this.parts.attempts.hidden = attempts.length === 0 || this.hasHistory;
    this.attempts.show(attempts);
    this.parts.news.hidden = this.model.happened.length === 0;
    this.news.show(this.model.happened);
    this.announce(target);
    this.tick();
  }

  /** What changes with the clock. */
  tick() {
    const target = this.model.target;
    if (!target || this.closed) return;
    const age = this.lost ? 0 : this.model.age;
    const starting = target.state === "starting" || target.state === "stalled";
    const phase = target.phases?.find((each) => each.id === target.phase);
    say(this.hero.line, headline(target, phase));
    const share = phase?.total && phase.state === "running" ? (phase.done ?? 0) / phase.total : null;
    this.hero.track.hidden = !starting || share === null;
    if (share !== null) this.hero.bar.style.width = `${100 * share}%`;
    this.figure("until", "Until ready", target.left && target.state === "starting" ? leftWords(target.left) : "", SOURCES[target.left?.source]);
    this.figure("phase", "Left in this phase", target.state === "starting" && phase?.left ? leftWords(phase.left) : "", phase?.left ? SOURCES[phase.left.source] : "");
    const began = target.began ? Date.now() / 1000 - target.began : null;
    this.figure("since", "Since it began", began !== null && (starting || target.state === "ready") ? spoken(began) : "");
    const idle = (target.idle ?? 0) + age;
    const limit = starting && target.silence_limit ? `up to ${spoken(target.silence_limit)} is normal here` : "";
    this.figure("idle", "Last line", target.bytes ? ago(idle) : "", limit, Boolean(limit) && idle > target.silence_limit);
    const memory = Object.entries(target.memory ?? {}).filter(([name]) => !UNSHOWN.has(name)).slice(0, 8);
    for (const [name, value] of memory) {
      const [title, text] = measure(name, Number(value));
      this.figure(`memory-${name}`, title, text);
    }
    for (const name of this.figures.keys()) {
      if (name.startsWith("memory-") && !memory.some(([each]) => `memory-${each}` === name)) this.figure(name, "", "");
    }
    this.timeline.show(target, age);
  }

  /** One figure; "" takes it away. @param {string} name @param {string} title @param {string} text @param {string} [note] @param {boolean} [care] */
  figure(name, title, text, note = "", care = false) {
    let row = this.figures.get(name);
    if (!text) {
      row?.item.remove();
      this.figures.delete(name);
      return;
    }
    if (!row) {
      row = { value: h("dd"), note: h("dd.note.dim") };
      row.item = h("div.figure", { "data-name": name }, h("dt", {}, title), row.value, row.note);
      this.figures.set(name, row);
      const after = CLOCKS.indexOf(name);
      const next = [...this.hero.figures.children].find((each) => CLOCKS.indexOf(each.dataset.name) > after);
      if (after < 0) this.hero.memory.append(row.item);
      else this.hero.figures.insertBefore(row.item, next ?? null);
    }
    say(row.value, text);
    say(row.note, note ?? "");
    row.note.hidden = !note;
    row.item.classList.toggle("care", care);
  }

  /** @param {string[]} can @param {string} state @param {string} good the last good launch in words; "" for none */
  buttons(can, state, good) {
    const button = (/** @type {string} */ look, /** @type {string} */ text, /** @type {() => void} */ press) =>
      h(`button${look}`, { type: "button", "data-keep": text, onclick: press }, text);
    if (this.model.target?.kind === "log") return null;
    return [
      can.includes("start") && button(state === "idle" ? ".primary" : "", state === "idle" ? "Start…" : "Start as configured…", () => this.confirm("start", `Start ${this.name} as it is configured`, "Start")),
      can.includes("restart") && state !== "idle" && button("", can.includes("stop") ? "Restart…" : "Repeat the last launch…",
        () => this.confirm("restart", `Restart ${this.name} with the same command line`, "Restart")),
      can.includes("restart") && good && button("", "Back to the last good launch…",
        () => this.confirm("restart", `Go back to the last good launch of ${this.name}?`, "Restart", { last_good: true })),
      can.includes("stop") && button(".danger", "Stop…", () => this.confirm("stop", `Stop ${this.name}?`, "Stop")),
    ];
  }

  /** @param {"start" | "stop" | "restart"} action @param {string} title @param {string} label @param {any} [body] */
  confirm(action, title, label, body) {
    confirmed({ action, target: this.model.target, title, label, body }, (text) => this.shell.announce(text));
  }

  /** @param {import("./model.js").Offer} offer */
  restart(offer) {
    const body = { remedy: offer.name };
    confirmed({ action: "restart", target: this.model.target, body, safe: offer.safe, title: `Restart ${this.name} with this change?`, label: "Restart" },
      (text) => this.shell.announce(text));
  }

  /** @param {any} target */
  announce(target) {
    const rule = target.verdict?.rule ?? "";
    document.title = `${stateWord(target.state)} – ${this.name} – bringup`;
    if (target.state !== this.told.state) this.shell.announce(`${this.name}: ${stateWord(target.state)}`);
    if (rule && rule !== this.told.rule) this.shell.announce(`Root cause: ${target.verdict.title}`);
    this.told = { state: target.state, rule };
  }
}

/** What is going on, in one line. @param {any} target @param {import("./model.js").Phase | undefined} phase */
export function headline(target, phase) {
  const count = phase?.total ? `, ${phase.done ?? 0} of ${phase.total}` : "";
  if (target.state === "idle") return "It has not been started yet.";
  if (target.state === "ready") return "The server answers.";
  if (target.state === "stopped") return "The server was stopped.";
  const where = phase ? `${phase.title}${phase.state === "running" ? count : ""}` : "";
  if (target.state === "crashed") return where ? `while ${where}` : "";
  if (target.state === "stalled") return where ? `It stands still while ${where}.` : "It stands still.";
  return where || "Waiting for the first line.";
}

/** @param {any[]} rows */
function attemptsTable(rows) {
  return [
    h("h2", {}, "Attempts of this run"),
    h("ol.plain.attempt-list", {}, [...rows].reverse().map((row) => {
      const took = Object.values(row.phases ?? {}).reduce((/** @type {number} */ sum, each) => sum + Number(each), 0);
      return h("li", {}, h("span.badge", { "data-state": row.state }, stateWord(row.state)),
        h("div", {}, h("strong", {}, `Attempt ${row.number}`), h("span.dim", {}, ` ended ${timeOfDay(row.ended)}${took ? `, ${spoken(took)} of phases` : ""}`),
          h("p", {}, row.title ?? row.reason), row.diff?.length > 0 && diff(row.diff)));
    })),
  ];
}

/** @param {import("./model.js").Happening[]} rows */
function newsList(rows) {
  return [
    h("h2", {}, "What happened"),
    h("ol.plain.news-list", { tabindex: "0", "aria-label": "What happened, newest first" }, [...rows].reverse().map((row) =>
      h("li", { "data-kind": row.kind }, h("time", {}, timeOfDay(row.at)), h("span", {}, clean(row.text))))),
  ];
}

/** @param {{trouble: string | null, stacks: any[]}} value */
function troubleCard({ trouble, stacks }) {
  return [
    trouble && [h("h2", {}, "It could not be started"), h("p", {}, trouble)],
    stacks.length > 0 && [h("h2", {}, `What its ${plural(stacks.length, "process", "processes")} ${stacks.length === 1 ? "is" : "are"} doing`), stacks.map((each) =>
      h("details", { "data-keep": `pid-${each.pid}` }, h("summary", {}, `${each.name} (${each.pid})`),
        h("pre.message", { dir: "ltr", tabindex: "0", "aria-label": `Stack of ${each.pid}` }, each.lines.map((/** @type {string} */ line) => `${clean(line)}\n`))))],
  ];
}
