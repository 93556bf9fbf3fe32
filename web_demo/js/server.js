/** What the page asks the gateway over HTTP. */

const ANSWER_LIMIT_MS = 5_000;

/** The gateway wants a key, or another one. */
export class Unauthorized extends Error {
  name = "Unauthorized";
}

/** The models that are served: [{id, kind, ready, reason}]. */
export async function fetchModels(key) {
  const response = await ask("/v1/models", key);
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) throw new Error(`/v1/models answered ${response.status}`);
  const { data } = await response.json();
  return data;
}

/** Null when the gateway can serve, else why it cannot. */
export async function fetchReadiness(key) {
  const response = await ask("/readyz", key);
  if (response.ok) return null;
  const body = await response.json().catch(() => ({}));
  return body.detail || body.title || "not ready";
}

function ask(path, key) {
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  return fetch(path, { headers, signal: AbortSignal.timeout(ANSWER_LIMIT_MS), cache: "no-store" });
}
