// The key of a server that wants one: asked for in the dialog that all pages have (key-dialog.part.html), kept for the tab's lifetime.

const STORAGE_KEY = "streamsynth.key";
const PARTS = ["key-dialog", "key-form", "key", "key-problem", "key-cancel"];
const KEY = /^[A-Za-z0-9_-]+$/;

export class KeyEntry {
  #dialog;
  #input;
  #problem;

  /** `onKey(key)` gets a well-formed key; `onClose()` decides where to write next. */
  constructor({ onKey, onClose }) {
    const [dialog, form, input, problem, cancel] = PARTS.map((id) => document.getElementById(id));
    this.#dialog = dialog;
    this.#input = input;
    this.#problem = problem;
    form.addEventListener("submit", (event) => {
      const key = input.value.trim();
      if (!KEY.test(key)) {
        event.preventDefault();
        problem.textContent = "A key has only letters, digits, - and _.";
        return;
      }
      sessionStorage.setItem(STORAGE_KEY, key);
      onKey(key);
    });
    cancel.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", onClose);
  }

  get stored() {
    return sessionStorage.getItem(STORAGE_KEY);
  }

  get open() {
    return this.#dialog.open;
  }

  /** Asks for a key; one that is stored was refused. */
  ask() {
    if (this.open) return;
    this.#problem.textContent = this.stored ? "The server does not know this key." : "";
    sessionStorage.removeItem(STORAGE_KEY);
    this.#input.value = "";
    this.#dialog.showModal();
  }
}
