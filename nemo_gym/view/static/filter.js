"use strict";
// The filter language for a bundle that is opened from disk, where no server answers: the same as nemo_gym/view/query.py.
const gymFilter = (() => {
  const TOKEN = /\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([A-Za-z_]\w*)|(<=|>=|==|!=|<|>|\(|\)|-))/y;
  const NAMES = {
    task: "task", repeat: "rollout", attempt: "attempt", reward: "reward", turns: "turns", tools: "tool_calls",
    tokens_in: "tokens_in", tokens_out: "tokens_out", seconds: "seconds",
    seconds_queue: "seconds_queue", seconds_seed_session: "seconds_seed_session", seconds_model: "seconds_model",
    seconds_tools: "seconds_tools", seconds_verify: "seconds_verify", seconds_agent: "seconds_agent", outcome: "outcome", kind: "kind",
    whom: "whom", agent: "agent", expected: "expected", extracted: "extracted", rule: "rule", answer: "answer",
    question: "question", message: "message",
  };

  function tokens(text) {
    const found = [];
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < text.trimEnd().length) {
      const at = TOKEN.lastIndex;
      const match = TOKEN.exec(text);
      if (!match) throw new Error(`cannot read from: ${text.slice(at)}`);
      if (match[1] !== undefined) found.push({ value: Number(match[1]) });
      else if (match[2] !== undefined) found.push({ value: match[2].slice(1, -1).replace(/\\(.)/g, "$1") });
      else if (match[3] !== undefined) found.push({ word: match[3] });
      else found.push({ sign: match[4] });
    }
    return found;
  }

  function parse(text) {
    const left = tokens(text);
    const is = (kind, value) => left.length > 0 && left[0][kind] === value;

    function any() {
      let found = all();
      while (is("word", "or")) { left.shift(); const one = found, two = all(); found = (row) => one(row) || two(row); }
      return found;
    }
    function all() {
      let found = not();
      while (is("word", "and")) { left.shift(); const one = found, two = not(); found = (row) => one(row) && two(row); }
      return found;
    }
    function not() {
      if (is("word", "not")) { left.shift(); const inner = not(); return (row) => !inner(row); }
      if (is("sign", "(")) { left.shift(); const inner = any(); expect(")"); return inner; }
      return comparison();
    }
    function comparison() {
      const sides = [operand()], signs = [];
      for (;;) {
        if (left.length && ["<", "<=", ">", ">=", "==", "!="].includes(left[0].sign)) signs.push(left.shift().sign);
        else if (is("word", "in")) { left.shift(); signs.push("in"); }
        else if (is("word", "not") && left[1] && left[1].word === "in") { left.splice(0, 2); signs.push("not in"); }
        else break;
        sides.push(operand());
      }
      if (!signs.length) throw new Error("a comparison is missing, such as reward < 1");
      return (row) => signs.every((sign, place) => holds(sides[place](row), sign, sides[place + 1](row)));
    }
    function operand() {
      const token = left.shift();
      if (!token) throw new Error("something is missing at the end");
      if (token.sign === "-") { const inner = operand(); return (row) => -inner(row); }
      if ("value" in token) return () => token.value;
      if (token.word === "None") return () => null;
      if (token.word === "tokens") return (row) => row.tokens_in + row.tokens_out;
      if (token.word && NAMES[token.word]) { const name = NAMES[token.word]; return (row) => row[name] ?? null; }
      throw new Error(`there is no column ${token.word ?? token.sign}`);
    }
    function expect(sign) { if (!is("sign", sign)) throw new Error(`${sign} is missing`); left.shift(); }

    const found = any();
    if (left.length) throw new Error(`cannot read from: ${left[0].word ?? left[0].sign ?? left[0].value}`);
    return found;
  }

  function holds(one, sign, two) {
    if (sign === "==") return one === two;
    if (sign === "!=") return one !== two;
    if (one === null || two === null) return false;
    if (sign === "in") return String(two).toLowerCase().includes(String(one).toLowerCase());
    if (sign === "not in") return !String(two).toLowerCase().includes(String(one).toLowerCase());
    return sign === "<" ? one < two : sign === "<=" ? one <= two : sign === ">" ? one > two : one >= two;
  }

  return (text) => (text.trim() ? parse(text) : () => true);
})();
