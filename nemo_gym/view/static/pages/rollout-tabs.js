"use strict";
// Tabs of a rollout besides the conversation: schemas of the tools, raw JSON, traceback.
(() => {
  const { html, h, api, format, ui, markdown, renderers, useData } = gymView;
  const SHOWN_JSON = 200_000;
  /** An array of numbers over many lines; in JSON, a line break is never inside a text. */
  const NUMBERS = /\[\n\s+(-?\d[\d.eE+-]*(?:,\n\s+-?\d[\d.eE+-]*)*)\n\s*\]/g;

  /** Return a value as indented JSON with each array of numbers (token ids, probabilities) in one line. */
  const readableJson = (/** @type {any} */ value) =>
    JSON.stringify(value, null, 2).replace(
      NUMBERS,
      (_, /** @type {string} */ numbers) => `[${numbers.replace(/,\n\s+/g, ", ")}]`,
    );

  function Parameters({ parameters }) {
    return html`<div class="scrollx" tabindex="0" role="region" aria-label="Parameters"><table class="tbl boxed"><thead><tr><th>Parameter</th><th>Type</th><th>Required</th><th>Description</th></tr></thead><tbody>${parameters.map((/** @type {any} */ parameter) => html`<tr key=${parameter.name}><td class="mono">${parameter.name}</td><td class="mono t2">${format.stored(parameter.type)}</td><td>${parameter.required ? "yes" : `no${parameter.default === undefined || parameter.default === null ? "" : `, ${format.stored(parameter.default)}`}`}</td><td class="wrapcell">${parameter.description ?? ""}</td></tr>`)}</tbody></table></div>`;
  }

  function ToolSchema({ tool }) {
    const calls = tool.calls
      ? `called ${format.plural(tool.calls, "time")}, ${tool.errors ? format.plural(tool.errors, "error") : "no error"}`
      : "not called";
    return html`<section class="card toolschema"><header><h2 class="mono">${tool.name}</h2><span class="note">${calls}</span></header><div class="body">${tool.description ? html`<p class="tooldescription">${tool.description}</p>` : null}${tool.parameters?.length ? html`<${Parameters} parameters=${tool.parameters} />` : html`<p class="t3">No parameters.</p>`}
      <details class="gap-top"><summary class="t2">JSON schema</summary>${h(markdown.Code, { code: JSON.stringify(tool.schema ?? tool.parameters ?? {}, null, 2), language: "json", wrap: true, label: "JSON schema" })}</details></div></section>`;
  }

  function ToolsTab({ id, attempt }) {
    renderers.useRenderers();
    const { data, error } = useData(() => api.tools(id, { attempt }), [id.run, id.task, id.repeat, attempt]);
    if (error) return html`<${ui.Empty} title="No tools are shown"><p>${error.message}</p><//>`;
    if (!data) return html`<${ui.Skeleton} rows=${3} />`;
    if (!data.tools.length)
      return html`<${ui.Empty} title="The model had no tools"><p>The request of this rollout declares none.</p><//>`;
    return html`<div class="stack">${data.tools.map((/** @type {any} */ tool) => html`<${ToolSchema} key=${tool.name} tool=${tool} />`)}</div>`;
  }

  function JsonTab({ id, attempt }) {
    renderers.useRenderers();
    const { data, error } = useData(() => api.raw(id, { attempt }), [id.run, id.task, id.repeat, attempt]);
    if (error) return html`<${ui.Empty} title="No record is shown"><p>${error.message}</p><//>`;
    if (!data) return html`<${ui.Skeleton} rows=${6} />`;
    const text = readableJson(data);
    return html`<div class="box" id="raw-text"><div class="call"><span class="t3 note">${format.count(text.length)} characters</span><span class="grow"></span><${ui.CopyButton} text=${() => text} label="Copy" /></div>${h(markdown.Code, { code: text.length > SHOWN_JSON ? `${text.slice(0, SHOWN_JSON)}\n… cut; Copy has all of it` : text, language: "json", wrap: true, label: "Raw JSON" })}</div>`;
  }

  function TracebackTab({ text }) {
    return html`<div class="box"><div class="call"><span class="grow"></span><${ui.CopyButton} text=${() => text} label="Copy" /></div>${h(markdown.Code, { code: text, language: "python", wrap: true, label: "Traceback" })}</div>`;
  }

  gymView.rolloutTabs = { ToolsTab, JsonTab, TracebackTab };
})();
