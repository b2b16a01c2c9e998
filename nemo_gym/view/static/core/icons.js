"use strict";
// Icons: paths on a 16 × 16 grid, drawn as strokes in the colour of the text.
(() => {
  const CIRCLE = "M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8z";
  /** @type {Record<string, string>} */
  const PATHS = {
    check: "M3.5 8.5l3 3 6-7",
    failed: `M5.5 5.5l5 5m0-5l-5 5${CIRCLE}`,
    limit: `M8 4.5V8l2.3 1.5${CIRCLE}`,
    cancelled: `M3.7 3.7l8.6 8.6${CIRCLE}`,
    scored: `M5.3 8.2l1.9 1.9 3.6-4${CIRCLE}`,
    right: "M6 3.5L10.5 8 6 12.5",
    left: "M10 3.5L5.5 8 10 12.5",
    down: "M3.5 6L8 10.5 12.5 6",
    up: "M3.5 10L8 5.5 12.5 10",
    copy: "M5.5 5.5v-3h8v8h-3m-8-5h8v8h-8z",
    search: "M7 2.5a4.5 4.5 0 100 9 4.5 4.5 0 000-9zm3.3 7.8l3.2 3.2",
    moon: "M13.2 9.6A5.7 5.7 0 016.4 2.8a5.7 5.7 0 106.8 6.8z",
    sun: "M8 5.2a2.8 2.8 0 100 5.6 2.8 2.8 0 000-5.6zM8 1.5v1m0 11v1m6.5-6.5h-1m-11 0h-1m11-4.5l-.8.8m-8 8l-.8.8m0-9.6l.8.8m8 8l.8.8",
    help: `M6.2 6.2a1.9 1.9 0 113 1.6c-.8.5-1.2.8-1.2 1.7M8 11.7v.1${CIRCLE}`,
    columns: "M2.5 3h11v10h-11zm3.7 0v10m3.6-10v10",
    download: "M8 2.5v7m-3-2.8l3 3 3-3M2.8 13.2h10.4",
    rows: "M2.5 4h11m-11 4h11m-11 4h11",
    star: "M8 2.2l1.7 3.6 3.9.5-2.9 2.7.8 3.9L8 11l-3.5 1.9.8-3.9L2.4 6.3l3.9-.5z",
    wrench: "M10.2 2.6a3.2 3.2 0 00-3.9 4.2L2.5 10.6l2.9 2.9 3.8-3.8a3.2 3.2 0 004.2-3.9l-2 2-2.3-.9-.9-2.3z",
    user: "M8 2.5a2.6 2.6 0 100 5.2 2.6 2.6 0 000-5.2zM3 13.5c.4-2.6 2.4-4 5-4s4.6 1.4 5 4",
    assistant: "M3.5 5.5h9v7h-9zM8 5.5v-3M6 8.5v1m4-1v1",
    reasoning: "M5.2 11.8a3 3 0 01-1-5.6 3.8 3.8 0 017.3-.7 3.2 3.2 0 01.2 6.3zM5 14.2h.1",
    gear: "M8 5.8a2.2 2.2 0 100 4.4 2.2 2.2 0 000-4.4zM8 1.8v1.6m0 9.2v1.6M1.8 8h1.6m9.2 0h1.6M3.6 3.6l1.1 1.1m6.6 6.6l1.1 1.1m0-8.8l-1.1 1.1m-6.6 6.6l-1.1 1.1",
    warning: "M8 2.2L14.3 13H1.7zM8 6.5v3m0 1.8v.1",
    info: `M8 7.3v3.9M8 4.8v.1${CIRCLE}`,
    link: "M6.5 9.5l3-3M7 4.5l1.4-1.4a2.9 2.9 0 014.1 4.1L11 8.7M9 11.5l-1.4 1.4a2.9 2.9 0 01-4.1-4.1L5 7.3",
    scale: "M8 2.5v11m-3 0h6M3 4.5h10M3 4.5L1.3 9h3.4zm10 0L11.3 9h3.4z",
    more: "M3.5 8h.1M8 8h.1m4.4 0h.1",
    close: "M4 4l8 8m0-8l-8 8",
  };

  gymView.Icon = function Icon({ name, small = false, extra = "" }) {
    return gymView.html`<svg class=${`ic ${small ? "sm" : ""} ${extra}`} viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name] ?? PATHS.info} /></svg>`;
  };
})();
