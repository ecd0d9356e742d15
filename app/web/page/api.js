// Paths and bodies in, JSON out. Paths are relative to the page, so that it works behind any sub-path. The token is
// kept for this tab's session and nowhere else.

const KEY = `bringup token ${location.pathname}`;

/** An answer that is not what was asked for: an RFC 9457 problem, or status 0 where there was no answer. */
export class Problem extends Error {
  /** @param {number} status @param {string} text @param {any} [body] */
  constructor(status, text, body = {}) {
    super(text);
    this.status = status;
    this.body = body;
  }
}

/** @returns {string} */
export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** @param {string} text "" forgets it */
export function keepToken(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** @type {() => void} */
let unauthorised = () => {};

/** Called when an answer was 401. @param {() => void} listener */
export function onUnauthorised(listener) {
  unauthorised = listener;
}

/**
 * Any request.
 * @param {string} path
 * @param {RequestInit} [more]
 * @returns {Promise<Response>} an answer below 400
 */
export async function ask(path, more = {}) {
  const headers = new Headers(more.headers);
  if (token()) headers.set("authorization", `Bearer ${token()}`);
  let answer;
  try {
    answer = await fetch(path, { ...more, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (/** @type {Error} */ (error).name === "AbortError") throw error;
    throw new Problem(0, "bringup does not answer");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) unauthorised();
  const body = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, body.detail ?? `${answer.status} ${answer.statusText}`, body);
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function get(path, signal) {
  return (await ask(path, { signal })).json();
}

/** @param {string} path @param {any} body @param {Record<string, string>} [headers] @returns {Promise<any>} */
export async function post(path, body, headers = {}) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  /** @type {Record<string, string>} */
  const kind = text === undefined ? {} : { "content-type": "application/json" };
  return (await ask(path, { method: "POST", body: text, headers: { ...kind, ...headers } })).json();
}

/** A key that nobody else uses. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} name a target's */
export function targetPath(name) {
  return `api/targets/${encodeURIComponent(name)}`;
}
