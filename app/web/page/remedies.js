// What helps, in, as cards out: the change as a diff, what it costs, how far it may be trusted; a button where this
// target can be restarted with it, a command to copy where it cannot.

import { h } from "./dom.js";
import { reference } from "./verdict.js";
import { PROOF, quoted } from "./words.js";

/** @typedef {import("./model.js").Offer} Offer */

/**
 * @param {any} cause the verdict's, with its remedies
 * @param {Offer[]} offers those that the target can be restarted with
 * @param {((offer: Offer) => void) | null} press asks for a restart; null where the target cannot be restarted
 * @returns {import("./dom.js").Child}
 */
export function remedyCards(cause, offers, press) {
  const rows = (cause?.remedies ?? []).flatMap((/** @type {any} */ remedy, /** @type {number} */ place) => {
    const name = `${cause.rule}#${place + 1}`;
    const mine = offers.filter((offer) => offer.name === name || offer.name.startsWith(`${name}@`));
    return mine.length > 1 ? mine.map((offer) => card(remedy, offer, press)) : [card(remedy, mine[0], press)];
  });
  return [
    h("h2", {}, "What helps"),
    rows.length ? h("ol.remedies", {}, rows) : h("p.dim", {}, "Nothing is known that helps."),
  ];
}

/** @param {any} remedy @param {Offer | undefined} offer @param {((offer: Offer) => void) | null} press */
function card(remedy, offer, press) {
  const change = remedy.change;
  const lines = offer?.diff ?? change?.diff ?? [];
  const argv = offer?.argv ?? change?.argv;
  const can = offer && press;
  return h("li.remedy", {},
    h("h3", {}, offer?.title ?? remedy.title),
    remedy.blocked && h("p.blocked", {}, `Not possible here: ${remedy.blocked}`),
    !remedy.blocked && lines.length > 0 && h("div.variant", {}, !offer && change?.variants?.length > 0 && h("p.dim", {}, `On ${change.versions}:`), diff(lines)),
    !remedy.blocked && !offer && variants(change),
    remedy.steps && h("p", {}, remedy.steps),
    h("dl.facts", {},
      remedy.cost && [h("dt", {}, "Cost"), h("dd", {}, remedy.cost)],
      h("dt", {}, "Safety"), h(`dd.${remedy.safe ? "good" : "care"}`, {}, remedy.safe ? "safe to apply as it is" : "read before you do it"),
      h("dt", {}, "Proof"), h("dd", {}, PROOF[/** @type {keyof typeof PROOF} */ (remedy.proof)] ?? remedy.proof,
        (remedy.verified ?? []).map((/** @type {string} */ link) => [" · ", reference(link)]))),
    can && h(`button${remedy.safe ? ".primary" : ""}`, { type: "button", "data-keep": offer.name, onclick: () => press(offer) }, "Restart with this…"),
    !can && !remedy.blocked && lines.length > 0 && argv?.length > 0 && command(argv, change?.env));
}

/** Spellings for other releases, where the release is not known. @param {any} change */
function variants(change) {
  return (change?.variants ?? []).map((/** @type {any} */ each) => h("div.variant", {},
    h("p.dim", {}, `On ${each.versions}:`), each.blocked ? h("p.blocked", {}, `Not possible: ${each.blocked}`) : diff(each.diff)));
}

/** @param {string[]} lines each begins with + or - */
export function diff(lines) {
  return h("pre.diff", { dir: "ltr", tabindex: "0", "aria-label": "The change of the command line" }, lines.map((line) => {
    const added = line.startsWith("+");
    return h(added ? "ins" : "del", {}, h("span.quiet", {}, added ? "add " : "remove "), h("span", { "aria-hidden": "true" }, added ? "+ " : "− "), line.slice(1), "\n");
  }));
}

/** A command line with a button that copies it. @param {string[]} argv @param {Record<string, string>} [env] */
export function command(argv, env = {}) {
  const set = Object.entries(env).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${assigned(value)}`);
  const text = [...set, quoted(argv)].join(" ");
  const label = argv[0]?.startsWith("-") ? "Copy the flags" : "Copy the command";
  const button = h("button.small", { type: "button", onclick: () => copy(text, button, label) }, label);
  return h("div.command", {}, h("pre", { dir: "ltr", tabindex: "0", "aria-label": "Command line" }, text), button);
}

/** A value for the shell; what bringup itself is to say there stays a command. @param {string} value */
function assigned(value) {
  return /^\$\(bringup [\w .-]+\)$/.test(value) ? `"${value}"` : quoted([value]);
}

/** @param {string} text @param {HTMLElement} button @param {string} before */
async function copy(text, button, before) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { "aria-label": "Command line" }, text);
    button.after(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = done ? "Copied" : "Could not copy; select the text";
  setTimeout(() => (button.textContent = before), 2000);
}
