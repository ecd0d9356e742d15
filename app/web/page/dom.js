// Names, attributes and children in, elements out. Text becomes text nodes and nothing else: there is no way to markup.

/** @typedef {Node | string | number | null | undefined | false | "" | readonly any[]} Child lists hold children again */

/**
 * An element: h("p.note", {title: "…", onclick: f}, "text", child, [more]).
 * @param {string} name tag, with classes after dots
 * @param {Record<string, any>} [given] attributes; functions are listeners, `true` is an attribute without value
 * @param {...Child} children
 * @returns {any}
 */
export function h(name, given = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.replace(/^on/, ""), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

/** @param {Element} element @param {Child} child */
export function add(element, child) {
  if (Array.isArray(child)) for (const each of child) add(element, each);
  else if (child !== null && child !== undefined && child !== false) {
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces what an element holds. @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

/** Sets a text only when it is another one, so that selections and readers are left alone. @param {Element} element @param {string} text */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A part of the page that is built anew only when what it shows has changed. What is open or focused in it stays so,
 * by the `data-keep` names of its elements.
 */
export class Part {
  /** @param {Element} host @param {(value: any) => Child} build */
  constructor(host, build) {
    this.host = host;
    this.build = build;
    this.shown = "";
  }

  /** @param {any} value anything that JSON can hold */
  show(value) {
    const text = JSON.stringify(value) ?? "";
    if (text === this.shown) return;
    this.shown = text;
    const open = [...this.host.querySelectorAll("details[open][data-keep]")].map((each) => each.getAttribute("data-keep"));
    const active = this.host.contains(document.activeElement) ? document.activeElement?.getAttribute("data-keep") : null;
    fill(this.host, this.build(value));
    for (const each of this.host.querySelectorAll("[data-keep]")) {
      const name = each.getAttribute("data-keep");
      if (each instanceof HTMLDetailsElement && open.includes(name)) each.open = true;
      if (name === active && each instanceof HTMLElement) each.focus({ preventScroll: true });
    }
  }
}
