// What the server offers: models with their speed ranges, voices, and how long a text may be.

import { ask } from "./http.js";

/** `{models: [{id, description, speed: [low, high], default_voice}], textCharacters}`, the default model first. */
export async function loadModels(key) {
  const { limits, models } = await get("/v1/limits", key);
  return {
    models: ofKind(models, "speech"),
    textCharacters: limits.text_characters,
  };
}

/** Those that are watched while they make: `[{id, sizes: [{width, height}], fps, chunk_frames, ...}]`, the default first. */
export async function loadVideoModels(key) {
  return ofKind((await get("/v1/limits", key)).models, "video").filter(({ realtime }) => realtime);
}

/** Those that make whole clips or images, as `makes` says, and `limits.max_frames` of a clip. */
export async function loadPictureModels(key) {
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

const get = async (path, key) => (await ask(path, { key })).json();
