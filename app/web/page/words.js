// Figures in, words for people out. Pure.

/** What each state is called, and what it means. */
export const STATES = {
  idle: "Not started",
  starting: "Starting",
  ready: "Ready",
  crashed: "Crashed",
  stalled: "Stalled",
  stopped: "Stopped",
};

/** What is to be said of a piece of advice that the log gives. */
export const SAYS = /** @type {Record<string, string>} */ ({
  right: "right here", wrong: "does not help here", gone: "gone in this version", done: "is so already", "tells more": "mends nothing",
  open: "nothing is known for or against it here",
});

/** Words for how far a remedy is proved. */
export const PROOF = {
  reproduced: "reproduced by this project, before and after",
  reported: "reported to help",
  suggested: "suggested, not proved",
};

/** Words for how sure a verdict is. */
export const STAGES = {
  early: "early: named while the log is still being written",
  refined: "refined",
  confirmed: "confirmed",
};

/** @param {string | undefined} state */
export function stateWord(state) {
  return STATES[/** @type {keyof typeof STATES} */ (state)] ?? state ?? "Unknown";
}

/** Seconds as "0:07", "1:40" or "2:03:00". @param {number} seconds */
export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** Seconds to read aloud: "3 min 24 s". @param {number} seconds */
export function spoken(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : whole} s`;
  const parts = [[Math.floor(whole / 3600), "h"], [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  return parts.filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

/** @typedef {{seconds: number, low: number, high: number, source: string}} Left */

/** "about 1:40 (1:10–2:30)". @param {Left} left */
export function leftWords(left) {
  const low = clock(left.low);
  const high = clock(left.high);
  return `about ${clock(left.seconds)}${low === high ? "" : ` (${low}–${high})`}`;
}

/** What an estimate rests on. @type {Record<string, string>} */
export const SOURCES = {
  bar: "from the steps of this phase",
  history: "from earlier starts",
  engine: "as the engine says itself",
};

const MEASURES = /** @type {Record<string, string>} */ ({
  weights_gb: "Weights",
  kv_gb: "KV cache",
  k_gb: "K cache",
  v_gb: "V cache",
  avail_gb: "GPU memory left",
  graph_gb: "CUDA graphs",
  base_gb: "In use before loading",
  kv_tokens: "KV cache tokens",
  context_len: "Context length",
  max_running_requests: "Requests at once",
  mem_fraction_static: "Static memory share",
  gpu_memory_utilization: "GPU memory share",
});

/** A memory figure as [what, how much]. @param {string} name @param {number} value @returns {[string, string]} */
export function measure(name, value) {
  const draft = name.startsWith("draft_");
  const bare = draft ? name.slice(6) : name;
  const unit = bare.endsWith("_gb") ? " GB" : bare.endsWith("_mib") ? " MiB" : "";
  const title = MEASURES[bare] ?? bare.replace(/_(gb|mib)$/, "").replaceAll("_", " ");
  return [draft ? `Draft: ${title}` : title, value.toLocaleString("en", { maximumFractionDigits: 3 }) + unit];
}

/** Seconds since something, loosely. @param {number} seconds */
export function ago(seconds) {
  return seconds < 2 ? "just now" : `${spoken(Math.floor(seconds))} ago`;
}

/** Figures that only mean something to the engine. */
export const UNSHOWN = new Set(["num_tokens", "k_gb", "v_gb"]);

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** The time of day of a wall clock (seconds since 1970). @param {number} at */
export function timeOfDay(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

/** Words as a shell reads them back. @param {string[]} words */
export function quoted(words) {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}
