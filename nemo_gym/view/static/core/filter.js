"use strict";
// The filter language for a bundle that is opened from disk, where no server answers: the same as nemo_gym/view/filters.py.
(() => {
  const TOKEN =
    /\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([A-Za-z_]\w*)|(<=|>=|==|!=|<|>|\(|\)|-))/y;
  const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];
  const STORED_NAMES = { repeat: "rollout", tools: "tool_calls" };
  const BASE_COLUMNS = [
    "task",
    "repeat",
    "attempt",
    "reward",
    "turns",
    "tools",
    "tokens_in",
    "tokens_out",
    "tokens_cached",
    "tokens_reasoning",
    "tokens",
    "cut_off",
    "refused",
    "no_answer",
    "has_expected",
    "tool_errors",
    "masked",
    "seconds",
    "seconds_queue",
    "seconds_seed_session",
    "seconds_model",
    "seconds_tools",
    "seconds_verify",
    "seconds_agent",
    "outcome",
    "kind",
    "whom",
    "agent",
    "model",
    "expected",
    "extracted",
    "rule",
    "answer",
    "question",
    "message",
  ];

  /** A filter cannot be read. `from` and `to` are the place in the text. */
  class FilterError extends Error {
    constructor(
      /** @type {string} */ message,
      /** @type {string} */ text,
      /** @type {number} */ from,
      /** @type {number} */ to,
      /** @type {string | null} */ suggestion = null,
    ) {
      super(message);
      this.status = 400;
      const repaired =
        suggestion === null ? {} : { suggestion, repaired: text.slice(0, from) + suggestion + text.slice(to) };
      this.detail = { error: message, message, from, to, ...repaired };
    }
  }

  function editDistance(/** @type {string} */ one, /** @type {string} */ two) {
    let previous = Array.from({ length: two.length + 1 }, (_, index) => index);
    for (let i = 1; i <= one.length; i++) {
      const current = [i];
      for (let j = 1; j <= two.length; j++) {
        current.push(
          Math.min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + Number(one[i - 1] !== two[j - 1])),
        );
      }
      previous = current;
    }
    return previous[two.length];
  }

  function closest(/** @type {string} */ name, /** @type {string[]} */ names) {
    const [distance, best] = names
      .map((each) => /** @type {[number, string]} */ ([editDistance(name, each), each]))
      .sort((a, b) => a[0] - b[0])[0];
    return distance <= Math.max(2, name.length / 3) ? best : null;
  }

  /** @typedef {{ value?: any, word?: string, sign?: string, from: number, to: number, isEnd?: boolean }} Token */

  function tokenize(/** @type {string} */ text) {
    /** @type {Token[]} */
    const tokens = [];
    const end = text.trimEnd().length;
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < end) {
      const start = TOKEN.lastIndex;
      const match = TOKEN.exec(text);
      if (!match) {
        const from = start + (/^\s*/.exec(text.slice(start))?.[0].length ?? 0);
        throw new FilterError(text[from] === "=" ? "Use == to compare." : "This cannot be read.", text, from, from + 1);
      }
      const to = TOKEN.lastIndex,
        from = to - match[0].trimStart().length;
      if (match[1] !== undefined) tokens.push({ value: Number(match[1]), from, to });
      else if (match[2] !== undefined) tokens.push({ value: match[2].slice(1, -1).replace(/\\(.)/g, "$1"), from, to });
      else if (match[3] !== undefined) tokens.push({ word: match[3], from, to });
      else tokens.push({ sign: match[4], from, to });
    }
    return tokens;
  }

  /** @typedef {(row: any) => any} Reader */

  function holds(/** @type {any} */ one, /** @type {string} */ sign, /** @type {any} */ two) {
    if (sign === "==") return one === two;
    if (sign === "!=") return one !== two;
    if (one === null || two === null) return false;
    if (sign === "in") return String(two).toLowerCase().includes(String(one).toLowerCase());
    if (sign === "not in") return !String(two).toLowerCase().includes(String(one).toLowerCase());
    return sign === "<" ? one < two : sign === "<=" ? one <= two : sign === ">" ? one > two : one >= two;
  }

  /** Return how to read a column of a row; `keys` are the paths of components and labels, such as labels.difficulty. */
  function columnReader(/** @type {string} */ name, /** @type {Record<string, string>} */ keys) {
    if (name === "tokens") return (/** @type {any} */ row) => row.tokens_in + row.tokens_out;
    if (name === "annotation") return (/** @type {any} */ row) => row.annotation?.verdict ?? null;
    const path = (keys[name] ?? STORED_NAMES[/** @type {keyof typeof STORED_NAMES} */ (name)] ?? name).split(".");
    const [first, rest] = [path[0], path.slice(1).join(".")];
    return rest
      ? (/** @type {any} */ row) => row[first]?.[rest] ?? null
      : (/** @type {any} */ row) => row[first] ?? null;
  }

  class Parser {
    constructor(/** @type {string} */ text, /** @type {Record<string, string>} */ keys) {
      this.text = text;
      this.keys = keys;
      this.tokens = tokenize(text);
      this.position = 0;
    }

    /** @returns {Token} */
    peek(ahead = 0) {
      return this.tokens[this.position + ahead] ?? { from: this.text.length, to: this.text.length + 1, isEnd: true };
    }

    take(/** @type {"word" | "sign"} */ kind, /** @type {string} */ value) {
      if (this.peek()[kind] !== value) return false;
      this.position += 1;
      return true;
    }

    /** @returns {never} */
    fail(/** @type {string} */ message, token = this.peek(), /** @type {string | null} */ suggestion = null) {
      throw new FilterError(message, this.text, token.from, token.to, suggestion);
    }

    parse() {
      const filter = this.either();
      if (!this.peek().isEnd) this.fail("Expected and, or, or the end here.");
      return filter;
    }

    /** @returns {Reader} */
    either() {
      let filter = this.both();
      while (this.take("word", "or")) {
        const one = filter,
          two = this.both();
        filter = (row) => one(row) || two(row);
      }
      return filter;
    }

    /** @returns {Reader} */
    both() {
      let filter = this.negation();
      while (this.take("word", "and")) {
        const one = filter,
          two = this.negation();
        filter = (row) => one(row) && two(row);
      }
      return filter;
    }

    /** @returns {Reader} */
    negation() {
      if (this.take("word", "not")) {
        const inner = this.negation();
        return (row) => !inner(row);
      }
      if (!this.take("sign", "(")) return this.comparison();
      const inner = this.either();
      if (!this.take("sign", ")")) this.fail("A closing bracket is missing.");
      return inner;
    }

    /** @returns {Reader} */
    comparison() {
      const sides = [this.operand()],
        signs = /** @type {string[]} */ ([]);
      for (;;) {
        const token = this.peek();
        if (COMPARISONS.includes(token.sign ?? "")) signs.push(/** @type {string} */ (token.sign));
        else if (token.word === "in") signs.push("in");
        else if (token.word === "not" && this.peek(1).word === "in") {
          signs.push("not in");
          this.position += 1;
        } else break;
        this.position += 1;
        sides.push(this.operand());
      }
      if (!signs.length) this.fail("A comparison is missing here, such as < 1.");
      return (row) => signs.every((sign, index) => holds(sides[index](row), sign, sides[index + 1](row)));
    }

    /** @returns {Reader} */
    operand() {
      const token = this.peek();
      if (token.isEnd) this.fail("The filter ends too early.");
      this.position += 1;
      if (token.sign === "-") {
        const inner = this.operand();
        return (row) => -inner(row);
      }
      if ("value" in token) return () => token.value;
      if (token.word === "None") return () => null;
      if (token.word === "True" || token.word === "False") return () => Number(token.word === "True");
      const names = [...BASE_COLUMNS, "annotation", ...Object.keys(this.keys)];
      if (token.word !== undefined && names.includes(token.word)) return columnReader(token.word, this.keys);
      return this.fail(`There is no column ${token.word ?? token.sign}.`, token, closest(token.word ?? "", names));
    }
  }

  /** Split a filter at the `and` of its top level, as the parts of "no result" show them. */
  function topLevelParts(/** @type {string} */ text) {
    const parts = [];
    let depth = 0,
      start = 0;
    for (const token of tokenize(text)) {
      if (token.sign === "(") depth += 1;
      else if (token.sign === ")") depth -= 1;
      else if (depth === 0 && token.word === "or") return [text.trim()];
      else if (depth === 0 && token.word === "and") {
        parts.push(text.slice(start, token.from).trim());
        start = token.to;
      }
    }
    return [...parts, text.slice(start).trim()];
  }

  gymView.filter = {
    compile: (/** @type {string} */ text, /** @type {Record<string, string>} */ keys = {}) =>
      text.trim() ? new Parser(text, keys).parse() : () => true,
    columnReader,
    topLevelParts,
  };
})();
