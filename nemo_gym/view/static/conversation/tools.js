"use strict";
// A tool call and its output in one card; call ids are in the raw JSON only.
(() => {
  const { html, h, Icon, format, ui, markdown, images, useState } = gymView;
  const SHOWN_LINES = 12;
  const LONG_LINES = 16;
  const CODE_ARGUMENTS = {
    code: "python",
    python: "python",
    program: "python",
    script: "bash",
    command: "bash",
    cmd: "bash",
    sql: "sql",
    query: "",
  };

  function parseArguments(/** @type {string} */ text) {
    try {
      const value = JSON.parse(text);
      return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
    } catch {
      return null;
    }
  }

  function languageOf(/** @type {string} */ name, /** @type {string} */ value, /** @type {string} */ tool) {
    if (!value.includes("\n") && value.length < 60 && !/[;(){}=]/.test(value)) return "";
    const known = CODE_ARGUMENTS[/** @type {keyof CODE_ARGUMENTS} */ (name)];
    if (/^\s*(?:select|with|insert|update)\b/i.test(value)) return "sql";
    if (known === "python" && /bash|shell|terminal/.test(tool)) return "bash";
    return known ?? "";
  }

  /** Arguments: one program as code, else a line for each name, else the text as it is. */
  function Arguments({ text, tool }) {
    const values = parseArguments(text),
      names = values ? Object.keys(values) : [];
    if (!values) return h(markdown.Code, { code: text, language: "json", wrap: true, label: "Arguments" });
    const program = names.find((name) => typeof values[name] === "string" && languageOf(name, values[name], tool));
    const rest = names.filter((name) => name !== program);
    const line = (/** @type {string} */ name) => {
      const value = values[name];
      return html`<div class="arg" key=${name}><span class="k">${name}</span><span>: </span><span class=${typeof value === "number" || typeof value === "boolean" ? "nmb" : "s"}>${typeof value === "string" ? value : JSON.stringify(value, null, value !== null && typeof value === "object" ? 2 : 0)}</span></div>`;
    };
    return html`${rest.length ? html`<pre class="code wrap" tabindex="0" role="group" aria-label="Arguments">${rest.map(line)}</pre>` : null}${program ? h(markdown.Code, { code: values[program], language: languageOf(program, values[program], tool), label: program }) : null}${names.length ? null : html`<pre class="code t3">no arguments</pre>`}`;
  }

  function looksLikeJson(/** @type {string} */ text) {
    return /^\s*[[{]/.test(text);
  }

  /** A long output shows its beginning; the rest is one click away, and what the server cut is fetched. */
  function Output({ event, fetchMore, unfolded = 0 }) {
    const [isOpen, setOpen] = useState(unfolded > 0);
    const [more, setMore] = useState("");
    const text = event.text + more,
      lines = text.split("\n"),
      isLong = lines.length > LONG_LINES || text.length > 3000;
    const shown = isLong && !isOpen ? lines.slice(0, SHOWN_LINES).join("\n").slice(0, 2400) : text;
    const total = event.length > text.length;
    return html`<div class=${`out ${isLong && !isOpen ? "long" : ""}`}><span class="lab">Output${event.error ? html`, <span class="oc failed">error</span>` : null}${lines.length > 1 ? `, ${format.plural(lines.length, "line")}` : ""}</span>
      ${shown === "" && event.images?.length ? null : h(markdown.Code, { code: shown || "(empty)", language: looksLikeJson(shown) ? "json" : "", wrap: true, label: "Output" })}<${images.Images} urls=${event.images} />
      ${isLong || total ? html`<div class="more">${isLong ? html`<button type="button" class="btn sm" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>${isOpen ? "Show less" : `Show all ${format.plural(lines.length, "line")}`}</button>` : null}${total && (isOpen || !isLong) ? html`<button type="button" class="btn sm" onClick=${async () => setMore(more + (await fetchMore(event, text.length)))}>show more (${format.count(event.length)} characters)</button>` : null}<${ui.CopyButton} text=${() => text} label="Copy" /></div>` : null}</div>`;
  }

  function ToolCard({ call, result, seconds, fetchMore, unfolded = 0 }) {
    const status = result?.error
      ? "error"
      : call?.status && call.status !== "completed"
        ? call.status
        : result
          ? "ok"
          : "no output";
    return html`<div class="box tool"><div class="call"><${Icon} name="wrench" small /><code>${call?.name ?? result?.name ?? "tool"}</code><span class=${status === "error" ? "oc failed" : "t3 note"}>${status}</span><span class="grow"></span>${seconds === undefined ? null : html`<span class="t3 num nowrap note">${format.seconds(seconds)}</span>`}${call ? html`<${ui.CopyButton} text=${() => call.text} tip="Copy the arguments" />` : null}</div>
      ${call ? html`<${Arguments} text=${call.text} tool=${call.name ?? ""} />` : null}${result ? html`<${Output} event=${result} fetchMore=${fetchMore} unfolded=${unfolded} />` : null}</div>`;
  }

  gymView.tools = { ToolCard, Arguments, Output };
})();
