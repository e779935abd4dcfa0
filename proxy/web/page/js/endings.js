// How a request ended that was cut short: why, and what to look at. Pure.

const ENDINGS = {
  "no-engine": ["there was no engine to ask", "start llama-server, vLLM or Ollama, or name one with --upstream URL"],
  "upstream-refused": ["the engine could not be reached", "check that the engine is running and that this is its address (--upstream URL sets it)"],
  "upstream-error": ["the engine broke off, or reported an error", "check whether the engine crashed or restarted; its own log says more"],
  timeout: ["the engine did not answer in time", "check that the machine can be reached and that no firewall drops the connection"],
  overloaded: ["slowtok had no file descriptor or no memory left for the request", "raise the limit of open files (ulimit -n), or lower max_connections; where memory was the limit, raise max_held_bytes"],
  "client-gone": ["the client left before the end", null],
  "proxy-stopped": ["slowtok was stopped before the end", null],
};

/** The verdict, or what else became of it: one that failed was not judged, and did not just pass. */
export function verdictWord(record) {
  if (record.verdict === "slow" || record.verdict === "normal") return record.verdict;
  if (record.ended === "client-gone") return "client gone";
  if (record.status >= 400 || record.ended in ENDINGS) return "failed";
  return record.verdict ?? "passed";
}

/** What stands beside the word: the phase of a slow one, the status of a failed one. */
export function verdictMore(record) {
  if (verdictWord(record) === "failed") return record.status >= 400 ? String(record.status) : "";
  return record.phase ?? "";
}

/** Why there is no verdict; null where there is one, or where none was to be. */
export function reasonOf(record) {
  if (record.reason) return record.reason;
  if (record.verdict) return null;
  return ENDINGS[record.ended]?.[0] ?? (record.status >= 400 ? `the engine answered with status ${record.status}` : null);
}

/** The same as a sentence; beside a verdict, a reason says what that leaves open. */
export function reasonSaid(record) {
  const reason = reasonOf(record);
  if (!reason) return null;
  const isJudged = record.verdict === "slow" || record.verdict === "normal";
  return `${isJudged ? "What the verdict leaves open" : "Why there is no verdict"}: ${reason}`;
}

/** What to look at where it was cut short. */
export const adviceOf = (record) => (record.verdict === "slow" || record.verdict === "normal" ? null : ENDINGS[record.ended]?.[1] ?? null);
