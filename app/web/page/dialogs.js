// Questions to whoever sits there in, their answers out: a token, and whether a start, stop or restart is really meant.

import { keepToken, newKey, post, Problem, targetPath, token } from "./api.js";
import { fill, h } from "./dom.js";
import { command, diff } from "./remedies.js";

/** Opens a dialog and waits for its end. @param {HTMLDialogElement} dialog @returns {Promise<string>} its return value */
function opened(dialog) {
  const before = document.activeElement;
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      done(dialog.returnValue);
    }),
  );
}

/** Asks for the token; whether one was given. @returns {Promise<boolean>} */
export async function askToken() {
  const rejected = token() !== "";
  keepToken("");
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const dialog = h("dialog.ask", { "aria-labelledby": "token-title" },
    h("form", { method: "dialog" },
      h("h2", { id: "token-title" }, "This bringup asks for a token"),
      rejected && h("p.trouble", { role: "alert" }, "The token was not accepted."),
      h("p", {}, "A read token shows everything; a control token can also start, stop and restart. It is kept until this tab is closed, and nowhere else."),
      h("label", { for: "token" }, "Token"), input,
      h("div.buttons", {}, h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"), h("button.primary", { value: "ok" }, "Use it"))));
  if ((await opened(dialog)) !== "ok" || !input.value.trim()) return false;
  keepToken(input.value.trim());
  return true;
}

/**
 * @typedef {{action: "start" | "stop" | "restart", target: any, body?: any, safe?: boolean, title: string, label: string}} Wanted
 * @param {Wanted} wanted
 * @param {(text: string) => void} done told in words when it is under way
 */
export async function confirmed(wanted, done) {
  const { action, target } = wanted;
  const path = `${targetPath(target.name)}/${action}`;
  const match = { "if-match": `"${target.tag}"` };
  const key = newKey();
  let again = false;
  const inside = h("div.inside", {}, h("p.dim", {}, "Asking what would change …"));
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const go = h(`button.${action === "stop" ? "danger" : "primary"}`, { type: "button", disabled: true, onclick: act }, wanted.label);
  const dialog = h("dialog.ask.wide", { "aria-labelledby": "confirm-title" },
    h("h2", { id: "confirm-title" }, wanted.title), inside, trouble,
    h("div.buttons", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  const over = opened(dialog);

  /** @param {unknown} error */
  function complain(error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) return dialog.close();
    trouble.hidden = false;
    trouble.textContent = error.message;
    const pointless = error.status === 409 && error.body.rule && !again;
    if (pointless) {
      again = true;
      go.textContent = "Do it all the same";
    }
    go.disabled = !pointless;
  }

  async function look() {
    if (action === "stop") {
      fill(inside, h("p", {}, `${target.name} is asked to end, then killed if it does not. Its log and its verdict are kept.`));
      go.disabled = false;
      return;
    }
    try {
      const planned = await post(path, { ...wanted.body, again, dry_run: true }, match);
      trouble.hidden = true;
      fill(inside,
        planned.diff.length ? [h("p", {}, planned.title), diff(planned.diff)] : h("p", {}, "The command line stays as it is."),
        wanted.safe === false && h("p.care", {}, "This one is not marked as safe: read what it costs before you do it."),
        action === "restart" && h("p", {}, target.can.includes("stop") ? "The server that runs now is stopped first. Its log is kept." : "The earlier attempts' logs are kept."),
        h("details", {}, h("summary", {}, "The whole command line"), command(planned.argv)));
      go.disabled = false;
      go.focus();
    } catch (error) {
      complain(error);
    }
  }

  async function act() {
    go.disabled = true;
    if (again && trouble.hidden === false) {
      await look();
      if (trouble.hidden === false) return;
      go.disabled = true;
    }
    try {
      const body = action === "stop" ? undefined : { ...wanted.body, again };
      const planned = await post(path, body, { ...match, "idempotency-key": `${key}${again ? "-again" : ""}` });
      dialog.close("done");
      done(action === "stop" ? `${target.name} is being stopped` : `${target.name}: ${planned.title} is under way`);
    } catch (error) {
      complain(error);
    }
  }

  await look();
  await over;
}
