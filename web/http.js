// Requests to the page's own server.

/** A request that the server refused, or that did not reach it; `error` is `{code, message, param}` as in its answers. */
export class Refusal extends Error {
  constructor(error) {
    super(error.message);
    this.error = error;
  }
}

/** The answer to a request, which was a good one; `body` is sent as JSON. Throws `Refusal`, or what `signal` says. */
export async function ask(path, { key = null, method = "GET", body, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch {
    signal?.throwIfAborted();
    throw new Refusal({ code: "unreachable", message: "The server cannot be reached." });
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Refusal(answer.error ?? { code: `http_${response.status}`, message: response.statusText });
}
