// All targets at a glance: asked for every two seconds, one card each.

import { get, Problem } from "./api.js";
import { fill, h, Part } from "./dom.js";
import { headline } from "./target.js";
import { leftWords, plural, spoken, stateWord } from "./words.js";

const EVERY = 2000;

export class Overview {
  /** @param {Element} host @param {import("./main.js").Shell} shell */
  constructor(host, shell) {
    this.shell = shell;
    this.closed = false;
    this.at = Date.now();
    this.failures = 0;
    const list = h("ul.targets");
    this.summary = h("p.dim");
    fill(host, h("div.view", {}, h("h1", {}, "Targets"), this.summary, list));
    this.view = host.firstElementChild;
    this.cards = new Part(list, (targets) => targets.map(card));
    document.title = "bringup";
    this.look();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  async look() {
    try {
      const { targets } = await get("api/targets");
      if (this.closed) return;
      this.shell.targets(targets.map((/** @type {any} */ each) => each.name));
      this.at = Date.now();
      this.failures = 0;
      this.shell.connection({ state: "open", text: "" }, this.at);
      const counts = new Map();
      for (const each of targets) counts.set(each.state, (counts.get(each.state) ?? 0) + 1);
      this.summary.textContent = [...counts].map(([state, count]) => `${count} ${stateWord(state).toLowerCase()}`).join(", ");
      this.cards.show(targets.map(slim));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.failures += 1;
      const text = error.status ? error.message : "bringup does not answer.";
      if (!this.closed) this.shell.connection({ state: error.status === 401 ? "refused" : "lost", text, again: Date.now() + EVERY }, this.at);
    }
    this.view?.classList.toggle("stale", this.failures > 0);
    if (!this.closed) this.timer = setTimeout(() => this.look(), EVERY);
  }
}

/** What a card shows. @param {any} target */
function slim(target) {
  const phase = target.phases?.find((/** @type {any} */ each) => each.id === target.phase);
  return {
    name: target.name, state: target.state, kind: target.kind, line: headline(target, phase),
    engine: [target.engine?.name, target.engine?.version].filter(Boolean).join(" "),
    share: target.state === "starting" && phase?.total ? Math.round((100 * (phase.done ?? 0)) / phase.total) : null,
    left: target.state === "starting" && (target.left ?? phase?.left) ? `${leftWords(target.left ?? phase.left)} ${target.left ? "until ready" : "left in this phase"}` : "",
    idle: target.state === "starting" && target.idle > 5 ? `last line ${spoken(target.idle)} ago` : "",
    cause: target.verdict?.title ?? "", helps: target.verdict ? (target.remedies ?? []).length : 0,
  };
}

/** @param {ReturnType<typeof slim>} target */
function card(target) {
  const bar = h("span.fill");
  bar.style.width = `${target.share ?? 0}%`;
  return h("li.target", { "data-state": target.state },
    h("a.card", { href: `#/t/${encodeURIComponent(target.name)}`, "data-keep": target.name },
      h("span.hero-state", {}, h("span.state", {}, stateWord(target.state)), h("span.engine.dim", {}, target.engine)),
      h("strong.name", {}, target.name),
      h("span.line", {}, target.cause || target.line),
      target.share !== null && h("span.meter", { "aria-hidden": "true" }, bar),
      h("span.dim", {}, [target.left, target.idle, target.helps ? `${plural(target.helps, "remedy", "remedies")} to restart with` : ""].filter(Boolean).join(" · "))));
}
