// The address in, the right view out; and what all views share: the links, the connection, the token, announcements.

import { get, keepToken, onUnauthorised, Problem, token } from "./api.js";
import { askToken } from "./dialogs.js";
import { fill, h } from "./dom.js";
import { Explain } from "./explain.js";
import { Overview } from "./overview.js";
import { RunView } from "./run.js";
import { TargetView } from "./target.js";

/** @param {string} id @returns {HTMLElement} */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

export class Shell {
  constructor() {
    this.main = at("main");
    this.banner = at("connection");
    /** @type {string[]} */
    this.names = [];
    /** @type {{close: () => void} | null} */
    this.view = null;
    this.asking = false;
    onUnauthorised(() => this.ask());
    addEventListener("hashchange", () => this.route());
  }

  async begin() {
    this.session();
    try {
      const { targets } = await get("api/targets");
      this.targets(targets.map((/** @type {any} */ each) => each.name));
      this.route();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 401) return;
      this.connection({ state: "lost", text: error.status ? error.message : "bringup does not answer.", again: Date.now() + 2000 }, 0);
      setTimeout(() => this.begin(), 2000);
    }
  }

  /** @param {string[]} names */
  targets(names) {
    if (names.join("\n") === this.names.join("\n")) return;
    this.names = names;
    this.links();
  }

  links() {
    const here = location.hash;
    const link = (/** @type {string} */ href, /** @type {string} */ text) => h("a", { href, "aria-current": here === href || here.startsWith(`${href}/`) ? "page" : null }, text);
    fill(at("nav"),
      this.names.length > 1 ? link("#/", "Overview") : this.names.map((name) => link(address(name), name)),
      this.names.length > 1 && this.names.length <= 4 && this.names.map((name) => link(address(name), name)),
      link("#/explain", "Explain a log"));
  }

  route() {
    if (location.hash === "" || location.hash === "#/") {
      if (this.names.length === 1) return location.replace(address(this.names[0]));
      if (location.hash === "") return location.replace("#/");
    }
    if (!location.hash.startsWith("#/")) return; // a place within the view
    this.view?.close();
    fill(this.main);
    this.links();
    const [, place, part = "", , run = "", number = ""] = location.hash.split("/");
    const name = place === "t" ? named(part) : "";
    if (location.hash === "#/explain") this.view = new Explain(this.main, this);
    else if (run && this.names.includes(name)) this.view = new RunView(this.main, name, named(run), Number(number), this);
    else if (name && this.names.includes(name)) this.view = new TargetView(this.main, name, this);
    else if (name) {
      this.view = null;
      fill(this.main, h("div.view", {}, h("h1", {}, "There is no such target"), h("p", {}, h("a", { href: "#/" }, "All targets"))));
    } else this.view = new Overview(this.main, this);
    scrollTo(0, 0);
  }

  /** Asks for a token, once at a time; then everything begins anew with it. */
  async ask() {
    if (this.asking) return;
    this.asking = true;
    this.view?.close();
    this.view = null;
    const given = await askToken();
    this.asking = false;
    this.session();
    if (given) return this.begin();
    this.banner.hidden = true;
    fill(this.main, h("div.view", {}, h("h1", {}, "A token is needed"), h("p", {}, "Nothing can be shown without one."),
      h("p", {}, h("button.primary", { type: "button", onclick: () => this.ask() }, "Give a token…"))));
  }

  session() {
    fill(at("session"), token() !== "" && h("button.small", { type: "button", onclick: () => (keepToken(""), location.reload()) }, "Forget the token"));
  }

  /**
   * Says how the connection is.
   * @param {import("./stream.js").Link} link
   * @param {number} since when what is shown came, in ms as Date.now; 0: nothing is shown
   */
  connection(link, since) {
    clearInterval(this.counting);
    if (link.state === "open") {
      if (this.lost) this.announce("Connected again");
      this.lost = false;
      this.banner.hidden = true;
      return;
    }
    this.lost = true;
    const shown = since ? ` What is shown is from ${new Date(since).toLocaleTimeString("en-GB")}.` : "";
    const seconds = () => Math.max(0, Math.ceil(((link.again ?? 0) - Date.now()) / 1000));
    const count = h("span", { "aria-hidden": "true" });
    const draw = () => (count.textContent = link.again ? (seconds() ? ` Trying again in ${seconds()} s.` : " Trying again …") : "");
    this.banner.dataset.state = link.state;
    fill(this.banner, h("strong", {}, link.text), shown, count);
    draw();
    this.banner.hidden = false;
    this.counting = setInterval(draw, 500);
  }

  /** @param {string} text */
  announce(text) {
    at("announce").textContent = text;
  }
}

/** @param {string} name */
function address(name) {
  return `#/t/${encodeURIComponent(name)}`;
}

/** @param {string} part of an address */
function named(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

new Shell().begin();
