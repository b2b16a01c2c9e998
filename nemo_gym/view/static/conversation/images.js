"use strict";
// Images of a message or a tool output: those that the record contains are shown, others only named.
(() => {
  const { html } = gymView;
  const IMAGE = /^data:image\/(?:png|jpeg|webp);base64,/;

  function Images({ urls }) {
    return (urls ?? []).map((/** @type {string} */ url, /** @type {number} */ index) =>
      IMAGE.test(url)
        ? html`<figure class="picture" key=${index}><img src=${url} alt=${`Image ${index + 1} of this message`} loading="lazy" /></figure>`
        : html`<p class="t3 note" key=${index}>${url}</p>`,
    );
  }

  gymView.images = { Images };
})();
