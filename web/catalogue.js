// What the server offers: models with their speed ranges, voices, and how long a text may be.

/** A request that the server refused; `code` as in its error body. */
export class CatalogueError extends Error {
  constructor(error) {
    super(error.message);
    this.error = error;
  }
}

/** `{models: [{id, description, speed: [low, high], default_voice}], textCharacters}`, the default model first. */
export async function loadModels(key) {
  const { limits, models } = await get("/v1/limits", key);
  return {
    models: ofKind(models, "speech"),
    textCharacters: limits.text_characters,
  };
}

/** `[{id, sizes: [{width, height}], fps, chunk_frames, interactions, default_transition_chunks}]`, the default first. */
export async function loadVideoModels(key) {
  return ofKind((await get("/v1/limits", key)).models, "video");
}

const ofKind = (models, kind) =>
  Object.entries(models)
    .filter(([, traits]) => traits.kind === kind)
    .map(([id, traits]) => ({ id, ...traits }));

/** The model's own voices `[{id, name, languages}]`, without the names that other systems use for them. */
export async function loadVoices(model, key) {
  const { voices } = await get(`/v1/audio/voices?model=${encodeURIComponent(model)}`, key);
  return voices.filter((voice) => voice.alias_of === undefined);
}

async function get(path, key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(path, { headers });
  } catch {
    throw new CatalogueError({ code: "unreachable", message: "The server cannot be reached." });
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  throw new CatalogueError(body.error ?? { code: `http_${response.status}`, message: response.statusText });
}
