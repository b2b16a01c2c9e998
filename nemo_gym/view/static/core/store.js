"use strict";
// Preferences of this browser. A browser that forbids storage (private window, file://) forgets them, and that is all.
(() => {
  const PREFIX = "gym-view:";

  gymView.store = {
    get(/** @type {string} */ key, /** @type {any} */ fallback) {
      try {
        const text = localStorage.getItem(PREFIX + key);
        return text === null ? fallback : JSON.parse(text);
      } catch {
        return fallback;
      }
    },
    set(/** @type {string} */ key, /** @type {any} */ value) {
      try {
        localStorage.setItem(PREFIX + key, JSON.stringify(value));
      } catch {
        /* storage is full or forbidden */
      }
    },
  };
})();
