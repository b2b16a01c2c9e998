"use strict";
// The libraries that render messages: loaded once, by the first page or preview that shows messages.
(() => {
  const FILES = ["vendor/markdown-it.umd.min.js", "vendor/temml.min.js", "vendor/highlight.min.js"];
  /** @type {Promise<void> | null} */
  let loading = null;

  function loadScript(/** @type {string} */ source) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => resolve(undefined);
      script.onerror = () => reject(new Error(`${source} is missing`));
      document.head.append(script);
    });
  }

  /** Load markdown-it, Temml and highlight.js; messages are plain text until they are there. */
  function loadRenderers() {
    loading ??= Promise.all(FILES.map(loadScript)).then(() => undefined);
    return loading;
  }

  /** Follow the loading in a component. */
  function useRenderers() {
    const [isReady, setReady] = gymView.useState(Boolean(window.markdownit && window.temml && window.hljs));
    gymView.useEffect(() => {
      loadRenderers().then(
        () => setReady(true),
        () => undefined,
      );
    }, []);
    return isReady;
  }

  gymView.renderers = { loadRenderers, useRenderers };
})();
