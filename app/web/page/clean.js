// Any text of a log in, one line that can be shown safely out: colours gone, invisible and direction signs made visible.

const ANSI = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
/** Characters shown of one line. */
export const WIDTH = 2000;

/** @param {string} text one line, as it was read @returns {string} */
export function clean(text) {
  let shown = drawn(text).slice(0, 8 * WIDTH);
  if (shown.includes("\x1b")) shown = shown.replace(ANSI, "");
  return shown.replaceAll("\t", "    ").replace(HIDDEN, name).slice(0, WIDTH);
}

/** A line without what a redrawn bar has painted over. @param {string} text @returns {string} */
export function drawn(text) {
  let end = text.length;
  while (end > 0 && text[end - 1] === "\r") end -= 1;
  return text.slice(end ? text.lastIndexOf("\r", end - 1) + 1 : 0, end);
}

/** @param {string} sign */
function name(sign) {
  const code = sign.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
}

const BAD = /\b(?:ERROR|CRITICAL|FATAL|Traceback|[A-Z]\w*(?:Error|Exception)\b|Unsupported:|Aborted|Segmentation fault|sigquit)|^\s*(?:E|F)\d{4} /;
const WARN = /\b(?:WARN(?:ING)?|UserWarning|FutureWarning|DeprecationWarning|deprecated)\b/;

/** How grave a line looks, from its words alone. @param {string} text @returns {"bad" | "warn" | ""} */
export function severity(text) {
  if (WARN.test(text)) return "warn";
  return BAD.test(text) ? "bad" : "";
}
