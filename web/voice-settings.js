// Model, voice and speed, within what the server offers.

import { loadModels, loadVoices } from "./catalogue.js";

const SPEED_KEY = "streamsynth.speed";

/** `onChoice({model, voice, speed})` is called at first and at each change. */
export class VoiceSettings {
  #elements;
  #onChoice;
  #onError;
  #models = [];
  #key = null;

  constructor({ elements, onChoice, onError }) {
    this.#elements = elements;
    this.#onChoice = onChoice;
    this.#onError = onError;
    const { model, voice, speed } = elements;
    model.addEventListener("change", () => this.#showModel());
    voice.addEventListener("change", () => this.#choose());
    speed.addEventListener("input", () => this.#showSpeed());
    speed.addEventListener("change", () => {
      localStorage.setItem(SPEED_KEY, speed.value);
      this.#choose();
    });
  }

  /** Fills the controls from the server; resolves with the longest text it takes, or null if it did not answer. */
  async load(key) {
    this.#key = key;
    try {
      const { models, textCharacters } = await loadModels(key);
      this.#models = models;
      if (!models.length) {
        this.#onError({ code: "no_speech" });
        return null;
      }
      this.#elements.model.replaceChildren(...models.map(({ id }) => new Option(id, id)));
      this.#elements.modelField.hidden = models.length < 2;
      await this.#showModel();
      return textCharacters;
    } catch (error) {
      if (!error.error) throw error;
      this.#onError(error.error);
      return null;
    }
  }

  async #showModel() {
    const { model, voice, speed } = this.#elements;
    const chosen = this.#models.find(({ id }) => id === model.value);
    const [low, high] = chosen.speed;
    Object.assign(speed, { min: low, max: high, disabled: low === high });
    speed.value = localStorage.getItem(SPEED_KEY) ?? 1;
    const voices = await loadVoices(chosen.id, this.#key);
    voice.replaceChildren(...voices.map(({ id, name }) => new Option(name, id, false, id === chosen.default_voice)));
    voice.value = chosen.default_voice;
    this.#showSpeed();
    this.#choose();
  }

  #showSpeed() {
    const { speed, speedValue } = this.#elements;
    const times = Number(speed.value).toFixed(2);
    speedValue.textContent = `${times}×`;
    speed.setAttribute("aria-valuetext", `${times} times`);
  }

  #choose() {
    const { model, voice, speed } = this.#elements;
    this.#onChoice({ model: model.value, voice: voice.value, speed: Number(speed.value) });
  }
}
