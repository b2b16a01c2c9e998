"use strict";
// Tooltips: any element with `data-tip`, under the pointer or with the focus. The same text is in its accessible name.
(() => {
  const MARGIN = 6;
  const tip = /** @type {HTMLElement} */ (document.getElementById("tip"));

  function place(/** @type {Element} */ target) {
    const box = target.getBoundingClientRect(),
      width = tip.offsetWidth,
      height = tip.offsetHeight;
    const left = Math.max(MARGIN, Math.min(innerWidth - width - MARGIN, box.left + box.width / 2 - width / 2));
    const above = box.top - height - MARGIN;
    tip.style.left = `${left}px`;
    tip.style.top = `${above < 4 ? box.bottom + MARGIN : above}px`;
  }

  function show(/** @type {Event} */ event) {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = target === null;
    if (!target) return;
    tip.textContent = gymView.plain(target.getAttribute("data-tip") ?? "");
    place(target);
  }

  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener(
    "scroll",
    () => {
      tip.hidden = true;
    },
    true,
  );
  addEventListener("keydown", () => {
    tip.hidden = true;
  });
  addEventListener("hashchange", () => {
    tip.hidden = true;
  });
})();
