"use strict";
// Markdown, code and LaTeX as elements. Nothing here parses HTML into this page: tokens of markdown-it become elements of a
// fixed list, so does the tree of Temml; output of highlight.js is read in an inert document, and only text and classes are
// copied from it.
(() => {
  const { h, html, plain, ui, useState } = gymView;
  const LONGEST_RENDERED = 60_000;
  const LONGEST_CODE = 40_000;
  const LONGEST_FORMULA = 4000;
  const BLOCKS = new Set([
    "p",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "li",
    "blockquote",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "em",
    "strong",
    "s",
  ]);
  const MATHML = new Set([
    "math",
    "semantics",
    "mrow",
    "mi",
    "mo",
    "mn",
    "ms",
    "mtext",
    "mspace",
    "msup",
    "msub",
    "msubsup",
    "mfrac",
    "msqrt",
    "mroot",
    "mover",
    "munder",
    "munderover",
    "mtable",
    "mtr",
    "mtd",
    "mpadded",
    "mphantom",
    "mstyle",
    "menclose",
    "merror",
    "mprescripts",
    "mmultiscripts",
  ]);
  const MATH_ATTRIBUTES = new Set([
    "display",
    "mathvariant",
    "stretchy",
    "fence",
    "separator",
    "lspace",
    "rspace",
    "minsize",
    "maxsize",
    "symmetric",
    "form",
    "accent",
    "accentunder",
    "linethickness",
    "columnalign",
    "rowspacing",
    "columnspacing",
    "columnlines",
    "rowlines",
    "width",
    "height",
    "depth",
    "voffset",
    "scriptlevel",
    "displaystyle",
    "movablelimits",
    "largeop",
    "notation",
  ]);
  const MATHML_NAMESPACE = "http://www.w3.org/1998/Math/MathML";
  const HIGHLIGHT_CLASS = /^(?:hljs-[\w-]+|[\w-]+_)$/;

  /** @type {any} */
  let parser = null;

  function createParser() {
    const markdown = window.markdownit({ html: false, linkify: false, typographer: false });
    markdown.validateLink = () => true; // links are inert until they are clicked, and then only http(s) ones open
    markdown.inline.ruler.before("escape", "math", mathRule);
    markdown.inline.ruler.before("escape", "boxed", boxedRule);
    markdown.block.ruler.before("fence", "math_block", mathBlockRule, { alt: ["paragraph", "blockquote", "list"] });
    return markdown;
  }

  const DELIMITERS = [
    ["$$", "$$", true],
    ["\\[", "\\]", true],
    ["\\(", "\\)", false],
    ["$", "$", false],
  ];

  /** A dollar sign opens a formula only where no space follows and no digit comes after the closing one: $5 and $6 is text. */
  function isFormula(/** @type {string} */ open, /** @type {string} */ body, /** @type {string} */ after) {
    if (!body.trim() || body.length > LONGEST_FORMULA) return false;
    return open !== "$" || (!/^\s|\s$/.test(body) && !/^\d/.test(after) && !body.includes("\n\n"));
  }

  function mathRule(/** @type {any} */ state, /** @type {boolean} */ silent) {
    for (const [open, close, isBlock] of DELIMITERS) {
      if (!state.src.startsWith(open, state.pos)) continue;
      const start = state.pos + String(open).length;
      let end = state.src.indexOf(close, start);
      while (end > 0 && close === "$" && state.src[end - 1] === "\\") end = state.src.indexOf(close, end + 1);
      if (end < 0 || end + String(close).length > state.posMax) continue;
      const body = state.src.slice(start, end);
      if (!isFormula(String(open), body, state.src.slice(end + 1))) continue;
      if (!silent) Object.assign(state.push("math", "", 0), { content: body, meta: { isBlock } });
      state.pos = end + String(close).length;
      return true;
    }
    return false;
  }

  const BOXED = "\\boxed{";

  /** An answer in \boxed{} outside a formula, where models often put it: up to the brace that closes it. */
  function boxedRule(/** @type {any} */ state, /** @type {boolean} */ silent) {
    if (!state.src.startsWith(BOXED, state.pos)) return false;
    const start = state.pos + BOXED.length,
      longest = Math.min(state.posMax, start + LONGEST_FORMULA);
    let depth = 1,
      end = start;
    for (; end < longest && depth; end++) {
      if (state.src[end] === "\\") end++;
      else if (state.src[end] === "{") depth++;
      else if (state.src[end] === "}") depth--;
    }
    const body = state.src.slice(start, end - 1);
    if (depth || !body.trim()) return false;
    if (!silent) Object.assign(state.push("boxed", "", 0), { content: body });
    state.pos = end;
    return true;
  }

  /** A formula between lines of $$ or \[ \], which Markdown would otherwise read as paragraphs. */
  function mathBlockRule(
    /** @type {any} */ state,
    /** @type {number} */ startLine,
    /** @type {number} */ endLine,
    /** @type {boolean} */ silent,
  ) {
    const start = state.bMarks[startLine] + state.tShift[startLine],
      first = state.src.slice(start, state.eMarks[startLine]);
    const delimiter = first.startsWith("$$") ? ["$$", "$$"] : first.startsWith("\\[") ? ["\\[", "\\]"] : null;
    if (!delimiter) return false;
    const end = state.src.indexOf(delimiter[1], start + 2);
    if (end < 0) return false;
    let line = startLine;
    while (line < endLine && state.eMarks[line] < end) line++;
    if (line >= endLine || state.src.slice(end + 2, state.eMarks[line]).trim()) return false;
    const body = state.src.slice(start + 2, end);
    if (!body.trim() || body.length > LONGEST_FORMULA) return false;
    if (silent) return true;
    Object.assign(state.push("math", "", 0), { content: body, meta: { isBlock: true }, block: true });
    state.line = line + 1;
    return true;
  }

  // ---- formulas

  /** Create elements from the tree of Temml: text, known elements and known attributes; of anything else only its content. */
  function mathElements(/** @type {any} */ node) {
    const target = MATHML.has(node.type)
      ? document.createElementNS(MATHML_NAMESPACE, node.type)
      : document.createDocumentFragment();
    if (target instanceof Element) {
      for (const [name, value] of Object.entries(node.attributes ?? {})) {
        if (MATH_ATTRIBUTES.has(name)) target.setAttribute(name, String(value));
      }
      if (node.style?.border || node.classes?.includes("tml-fbox")) target.classList.add("boxed");
    }
    if (typeof node.text === "string") target.append(plain(node.text));
    for (const child of node.type === "annotation" ? [] : (node.children ?? [])) target.append(mathElements(child));
    return target;
  }

  function parseFormula(/** @type {string} */ tex, /** @type {boolean} */ isBlock) {
    try {
      return window.temml.__renderToMathMLTree(tex, {
        displayMode: isBlock,
        throwOnError: true,
        trust: false,
        maxSize: [20, 20],
        maxExpand: 500,
      });
    } catch {
      return null; // not LaTeX that Temml knows: the source is shown
    }
  }

  function Formula({ tex, isBlock }) {
    const box = gymView.useRef(null),
      root = gymView.useMemo(() => parseFormula(tex, isBlock), [tex, isBlock]);
    gymView.useLayoutEffect(() => {
      if (!box.current || !root) return;
      box.current.replaceChildren(mathElements(root));
    }, [root]);
    if (!root) return html`<code class="formula-source">${isBlock ? `$$${tex}$$` : `$${tex}$`}</code>`;
    return isBlock
      ? html`<div class="scrollx formula" tabindex="0" role="group" aria-label="Formula" ref=${box}></div>`
      : html`<span ref=${box}></span>`;
  }

  // ---- code

  /** @returns {any} */
  function copyHighlight(/** @type {Node} */ node, /** @type {number} */ key) {
    if (node.nodeType === Node.TEXT_NODE) return plain(node.nodeValue ?? "");
    if (node.nodeType !== Node.ELEMENT_NODE) return null;
    const element = /** @type {Element} */ (node);
    const children = [...element.childNodes].map(copyHighlight);
    const classes = [...element.classList].filter((each) => HIGHLIGHT_CLASS.test(each)).join(" ");
    return element.localName === "span" ? h("span", { key, class: classes }, ...children) : children;
  }

  /** Return the colored parts of a program; its plain text if the language is unknown or the text too long. */
  function highlighted(/** @type {string} */ code, /** @type {string} */ language) {
    const library = window.hljs;
    if (!library || code.length > LONGEST_CODE || !language || !library.getLanguage(language)) return plain(code);
    const markup = library.highlight(code, { language, ignoreIllegals: true }).value;
    return [
      ...(new DOMParser().parseFromString(`<pre>${markup}</pre>`, "text/html").body.firstElementChild?.childNodes ??
        []),
    ].map(copyHighlight);
  }

  function Code({ code, language = "", wrap = false, label = "Code" }) {
    return h(
      "pre",
      { class: `code ${wrap ? "wrap" : ""}`, tabindex: 0, role: "group", "aria-label": label },
      h("code", null, highlighted(code, language)),
    );
  }

  function CodeBlock({ code, language }) {
    return html`<div class="codeblock">${h(Code, { code, language })}<span class="codeactions">${language ? html`<span class="t3">${language}</span>` : null}<${ui.CopyButton} text=${() => code} tip="Copy the code" /></span></div>`;
  }

  // ---- links: inert until they are clicked; the address is shown first

  function Link({ address, children }) {
    const [isShown, setShown] = useState(false);
    let url = null;
    try {
      url = new URL(address);
    } catch {
      /* a relative or broken address leads nowhere */
    }
    const opens = url !== null && /^https?:$/.test(url.protocol);
    return html`<span class="inertlink"><button type="button" class="linklike" aria-expanded=${String(isShown)} data-tip=${address} onClick=${() => setShown(!isShown)}>${children}</button>${
      isShown
        ? html`<span class="linkbox"><code>${address}</code>${opens ? html`<a href=${url?.href} target="_blank" rel="noopener noreferrer nofollow">open</a>` : html`<span class="t3">cannot be opened</span>`}</span>`
        : null
    }</span>`;
  }

  function image(/** @type {any} */ token, /** @type {number} */ key) {
    return h(
      "span",
      { key, class: "t3" },
      "[image",
      token.content ? `: ${token.content}, ` : " ",
      h(Link, { address: token.attrGet("src") ?? "" }, "address"),
      "]",
    );
  }

  // ---- tokens of markdown-it

  function inlineToken(/** @type {any} */ token, /** @type {number} */ key) {
    if (token.type === "text") return token.content;
    if (token.type === "softbreak") return "\n";
    if (token.type === "hardbreak") return h("br", { key });
    if (token.type === "code_inline") return h("code", { key }, token.content);
    if (token.type === "math") return h(Formula, { key, tex: token.content, isBlock: token.meta.isBlock });
    if (token.type === "boxed")
      return /[\\^_{}]/.test(token.content)
        ? h(Formula, { key, tex: `${BOXED}${token.content}}`, isBlock: false })
        : h("span", { key, class: "boxedtext" }, token.content);
    if (token.type === "image") return image(token, key);
    return token.content ?? "";
  }

  function blockToken(/** @type {any} */ token, /** @type {number} */ key) {
    if (token.type === "fence" || token.type === "code_block")
      return h(CodeBlock, {
        key,
        code: token.content.replace(/\n$/, ""),
        language: token.info.trim().split(/\s+/)[0].toLowerCase(),
      });
    if (token.type === "hr") return h("hr", { key });
    if (token.type === "inline") return build(token.children, inlineToken);
    return inlineToken(token, key);
  }

  function elementOf(/** @type {any} */ token, /** @type {any[]} */ children, /** @type {number} */ key) {
    if (token.type === "link_open") return h(Link, { key, address: token.attrGet("href") ?? "" }, ...children);
    if (token.hidden || !BLOCKS.has(token.tag)) return children;
    if (token.tag === "table")
      return h(
        "div",
        { key, class: "scrollx", tabindex: 0, role: "group", "aria-label": "Table" },
        h("table", { class: "tbl prosetable" }, ...children),
      );
    const start = token.tag === "ol" ? Number(token.attrGet("start") ?? 1) : 1;
    const align = /text-align:(right|center)/.exec(token.attrGet("style") ?? "")?.[1];
    const properties = {
      key,
      ...(start > 1 && Number.isSafeInteger(start) ? { start } : {}),
      ...(align ? { class: align === "right" ? "n" : "centred" } : {}),
    };
    return h(
      /^h[1-6]$/.test(token.tag) ? "div" : token.tag,
      /^h[1-6]$/.test(token.tag) ? { key, class: `heading level${token.tag[1]}` } : properties,
      ...children,
    );
  }

  /** Turn a flat list of tokens with opening and closing ones into nested elements. */
  function build(/** @type {any[]} */ tokens, /** @type {(token: any, key: number) => any} */ leaf) {
    /** @type {{ token: any, children: any[] }[]} */
    const stack = [{ token: null, children: [] }];
    tokens.forEach((token, index) => {
      const top = stack[stack.length - 1];
      if (token.nesting === 1) stack.push({ token, children: [] });
      else if (token.nesting === -1 && stack.length > 1) {
        const { token: opened, children } = /** @type {any} */ (stack.pop());
        stack[stack.length - 1].children.push(elementOf(opened, children, index));
      } else top.children.push(leaf(token, index));
    });
    return stack[0].children;
  }

  /** A message as Markdown; as plain text when it is too long or the libraries are not there yet. */
  function Prose({ text, rendered = true }) {
    const canRender = rendered && window.markdownit && text.length <= LONGEST_RENDERED;
    if (!canRender) return html`<div class="prose plaintext" dir="auto">${text}</div>`;
    parser ??= createParser();
    let content;
    try {
      content = build(parser.parse(text, {}), blockToken);
    } catch {
      return html`<div class="prose plaintext" dir="auto">${text}</div>`;
    }
    return h("div", { class: "prose", dir: "auto" }, ...content);
  }

  gymView.markdown = { Prose: memo(Prose), Code, highlighted };

  /** Render again only if a property changed: a parsed message is kept while the page around it changes. */
  function memo(/** @type {any} */ component) {
    return class Memo extends gymView.Component {
      shouldComponentUpdate(/** @type {any} */ next) {
        return (
          next.text !== this.props.text || next.rendered !== this.props.rendered || next.isReady !== this.props.isReady
        );
      }

      render(/** @type {any} */ properties) {
        return component(properties);
      }
    };
  }
})();
