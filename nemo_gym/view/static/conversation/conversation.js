"use strict";
// The conversation of a rollout: turns with a gutter, folded reasoning, tool cards, images, long texts in pieces.
(() => {
  const { html, h, Icon, format, ui, markdown, images, tools, renderers, useState } = gymView;
  const PEEK = 140;
  const FOLDED_SYSTEM = 200;
  const ROLES = {
    system: ["gear", "System"],
    developer: ["gear", "Developer"],
    user: ["user", "User"],
    assistant: ["assistant", "Assistant"],
    tool: ["wrench", "Tool"],
  };

  /** @typedef {{ kind: "message" | "reasoning" | "tool" | "other", by: string, turn?: number, event?: any, call?: any, result?: any, isFirstOfTurn?: boolean }} Block */

  /** Join each tool call with its output, by call id; what is left stands on its own. */
  function blocksOf(/** @type {any[]} */ events) {
    /** @type {Block[]} */
    const blocks = [];
    /** @type {Map<string, Block>} */
    const calls = new Map();
    let turn = -1;
    for (const event of events) {
      if (event.kind === "tool_result") {
        const open = calls.get(event.call_id) ?? (event.call_id === undefined ? [...calls.values()].pop() : undefined);
        if (open && !open.result) {
          open.result = event;
          continue;
        }
        blocks.push({ kind: "tool", by: "tool", turn: event.turn, result: event });
        continue;
      }
      const isFirstOfTurn = event.turn !== undefined && event.turn !== turn;
      if (isFirstOfTurn) turn = event.turn;
      if (event.kind === "tool_call") {
        const block = /** @type {Block} */ ({
          kind: "tool",
          by: isFirstOfTurn ? "assistant" : "tool",
          turn: event.turn,
          call: event,
          isFirstOfTurn,
        });
        calls.set(event.call_id ?? `${event.number}`, block);
        blocks.push(block);
      } else {
        const kind = event.kind === "reasoning" ? "reasoning" : event.kind === "message" ? "message" : "other";
        blocks.push({
          kind,
          by: kind === "reasoning" ? "assistant" : event.role,
          turn: event.turn,
          event,
          isFirstOfTurn,
        });
      }
    }
    return blocks;
  }

  const oneLine = (/** @type {string} */ text) =>
    text
      .slice(0, PEEK * 2)
      .replace(/\s+/g, " ")
      .trim()
      .slice(0, PEEK);

  /** A text and, if the server cut it, the button for the next piece. */
  function Text({ event, rendered, isReady, fetchMore }) {
    const [more, setMore] = useState("");
    const text = event.text + more;
    return html`<${markdown.Prose} text=${text} rendered=${rendered} isReady=${isReady} />${event.length > text.length ? html`<p class="gap-top-small"><button type="button" class="btn sm" onClick=${async () => setMore(more + (await fetchMore(event, text.length)))}>show more (${format.count(event.length)} characters)</button></p>` : null}`;
  }

  function Who({ event, link }) {
    const [icon, name] = ROLES[/** @type {keyof ROLES} */ (event.role)] ?? ROLES.tool;
    return html`<div class="who"><${Icon} name=${icon} small />${event.kind === "other" ? "Other item" : name}${event.status && event.status !== "completed" ? html`<span class="t3">${event.status}</span>` : null}<span class="acts"><${ui.CopyButton} text=${() => event.text} tip="Copy the text" />${link ? html`<button type="button" class="btn ghost sm icon" aria-label="Copy a link to this turn" data-tip="Copy a link to this turn" onClick=${link}><${Icon} name="link" /></button>` : null}</span></div>`;
  }

  function Fold({ icon, title, note, event, unfolded, children }) {
    return html`<details class="fold" open=${unfolded || undefined}><summary><${Icon} name="right" small extra="chev" /><${Icon} name=${icon} small /><b>${title}</b><span class="ell t3 peek">${oneLine(event.text)}</span><span class="grow"></span>${note ? html`<span class="t3 nowrap">${note}</span>` : null}</summary>${children}</details>`;
  }

  function Message({ block, options }) {
    const { event } = block,
      text = html`<${Text} event=${event} rendered=${options.rendered} isReady=${options.isReady} fetchMore=${options.fetchMore} /><${images.Images} urls=${event.images} />`;
    if (block.kind === "reasoning") {
      const note = event.tokens
        ? `${format.count(event.tokens)} tok`
        : block.stats?.tokens?.reasoning
          ? `${format.count(block.stats.tokens.reasoning)} tok`
          : "";
      return html`<${Fold} icon="reasoning" title="Reasoning" note=${note} event=${event} unfolded=${options.unfolded}>${text}<//>`;
    }
    if ((event.role === "system" || event.role === "developer") && event.length > FOLDED_SYSTEM)
      return html`<${Fold} icon="gear" title=${ROLES[/** @type {"system"} */ (event.role)][1]} event=${event} unfolded=${options.unfolded}>${text}<//>`;
    if (block.kind === "other")
      return html`<${Who} event=${event} />${h(markdown.Code, { code: event.text, language: "json", wrap: true, label: "Item" })}`;
    return html`${event.role === "user" ? null : html`<${Who} event=${event} link=${options.link ? () => options.link(event) : null} />`}${event.role === "user" ? html`<div class="userbox">${text}</div>` : text}`;
  }

  /** Turn, tokens and seconds beside a block; the slowest turn is bold. */
  function Gutter({ block, stats }) {
    if (block.kind === "tool" && !block.isFirstOfTurn)
      return html`<div class="gut">${stats?.tool_seconds === undefined || !block.isLastTool ? null : html`<span>${format.seconds(stats.tool_seconds)}</span>`}</div>`;
    if (!block.isFirstOfTurn)
      return html`<div class="gut">${block.event?.tokens && block.kind !== "reasoning" ? html`<span>${format.count(block.event.tokens)} tok</span>` : null}</div>`;
    return html`<div class="gut"><b>Turn ${block.turn}</b>${stats?.tokens?.output === undefined ? null : html`<span>${format.count(stats.tokens.output)} tok</span><br />`}${stats?.seconds === undefined ? null : html`<span class=${stats.slowest ? "hot" : ""}>${format.seconds(stats.seconds)}</span>`}</div>`;
  }

  function Block({ block, options, stats }) {
    const number = (block.event ?? block.call ?? block.result).number;
    const body =
      block.kind === "tool"
        ? html`<${tools.ToolCard} call=${block.call} result=${block.result} seconds=${undefined} fetchMore=${options.fetchMore} unfolded=${options.unfolded} />`
        : html`<${Message} block=${{ ...block, stats }} options=${options} />`;
    return html`<article class=${`turn by-${block.by} ${options.compact ? "compact" : ""}`} id=${options.compact ? undefined : block.isFirstOfTurn ? `turn-${block.turn}` : `event-${number}`} data-event=${number} data-turn=${block.isFirstOfTurn ? block.turn : undefined} aria-label=${block.isFirstOfTurn ? `Turn ${block.turn}` : undefined}>${options.compact ? null : html`<${Gutter} block=${block} stats=${stats} />`}<div class=${`msg ${block.by}`}>${body}</div></article>`;
  }

  /**
   * The turns of a rollout. `turns` are the statistics by turn; `compact` leaves the gutter out, for two side by side.
   * @param {any} props
   */
  function Conversation({
    events,
    turns = [],
    rendered = true,
    compact = false,
    unfolded = 0,
    fetchMore,
    link = null,
    last = null,
    end = "",
  }) {
    const isReady = renderers.useRenderers(),
      stats = new Map(turns.map((/** @type {any} */ turn) => [turn.turn, turn]));
    const blocks = blocksOf(events);
    blocks.forEach((block, index) => {
      const later = blocks.slice(index + 1).find((each) => each.kind === "tool");
      Object.assign(block, { isLastTool: block.kind === "tool" && (!later || later.turn !== block.turn) });
    });
    const options = { rendered, compact, unfolded, isReady, link, fetchMore: fetchMore ?? (async () => "") };
    return html`${blocks.map((block) => html`<${Block} key=${`${(block.event ?? block.call ?? block.result).number} ${unfolded}`} block=${block} options=${options} stats=${block.turn === undefined ? undefined : stats.get(block.turn)} />`)}${last}${end ? html`<div class="endmark">${end}</div>` : null}`;
  }

  gymView.conversation = { Conversation, blocksOf, loadRenderers: renderers.loadRenderers };
})();
