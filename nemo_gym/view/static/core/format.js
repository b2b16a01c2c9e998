"use strict";
// Numbers, times and words as the pages show them. A missing value is an en dash.
(() => {
  const NONE = "–",
    SPACE = "\u00a0";
  const isMissing = (/** @type {any} */ value) => value === null || value === undefined || Number.isNaN(value);
  const grouped = (/** @type {number} */ value, digits = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const sign = (/** @type {number} */ value) => (value > 0 ? "+" : value < 0 ? "−" : "");

  const format = {
    number: (/** @type {any} */ value, digits = 3) =>
      isMissing(value) ? NONE : value < 0 ? `−${grouped(-value, digits)}` : grouped(value, digits),
    count: (/** @type {any} */ value) => (isMissing(value) ? NONE : grouped(Math.round(value))),
    short(/** @type {any} */ value) {
      if (isMissing(value)) return NONE;
      for (const [size, unit] of [
        [1e9, "G"],
        [1e6, "M"],
        [1e4, "k"],
      ]) {
        const divisor = unit === "k" ? 1e3 : Number(size);
        if (Math.abs(value) >= Number(size)) return `${(value / divisor).toFixed(1)}${SPACE}${unit}`;
      }
      return grouped(Math.round(value));
    },
    /** Any recorded number: whole ones without a fraction, small ones with enough digits to be read. */
    value(/** @type {any} */ value) {
      if (isMissing(value)) return NONE;
      if (Number.isInteger(value)) return format.count(value);
      return Math.abs(value) >= 0.001 ? format.number(value, 3) : value.toPrecision(2);
    },
    seconds: (/** @type {any} */ value) =>
      isMissing(value) ? NONE : `${grouped(value, value < 10 && value > 0 && value < 0.1 ? 2 : 1)}${SPACE}s`,
    duration(/** @type {any} */ value) {
      if (isMissing(value)) return NONE;
      const whole = Math.round(value);
      if (whole < 60) return value < 10 ? format.seconds(value) : `${whole}${SPACE}s`;
      const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
      if (hours >= 48) return `${Math.floor(hours / 24)}${SPACE}d ${hours % 24}${SPACE}h`;
      return hours
        ? `${hours}${SPACE}h ${minutes}${SPACE}min`
        : `${minutes}${SPACE}min${whole % 60 && minutes < 10 ? ` ${whole % 60}${SPACE}s` : ""}`;
    },
    percent: (/** @type {any} */ share, digits = 1) =>
      isMissing(share) ? NONE : `${grouped(share * 100, digits)}${SPACE}%`,
    money(/** @type {any} */ dollars) {
      if (isMissing(dollars)) return NONE;
      if (dollars !== 0 && Math.abs(dollars) < 0.1) return `${(dollars * 100).toPrecision(2)}${SPACE}¢`;
      return `$${grouped(dollars, 2)}`;
    },
    signed: (/** @type {any} */ value, digits = 2) =>
      isMissing(value) ? NONE : `${sign(value)}${grouped(Math.abs(value), digits)}`,
    points: (/** @type {any} */ difference) => (isMissing(difference) ? NONE : format.signed(difference * 100, 1)),
    interval: (/** @type {any} */ bounds, digits = 3) =>
      bounds && !isMissing(bounds[0])
        ? `${format.number(bounds[0], digits)} – ${format.number(bounds[1], digits)}`
        : "",
    plural: (/** @type {number} */ count, /** @type {string} */ noun, many = `${noun}s`) =>
      `${format.count(count)} ${count === 1 ? noun : many}`,
    date(/** @type {any} */ when, withTime = true) {
      if (isMissing(when)) return NONE;
      const date = new Date(typeof when === "number" ? when * 1000 : when);
      if (Number.isNaN(date.getTime())) return NONE;
      const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
      return withTime ? `${day}, ${format.time(date)}` : day;
    },
    time(/** @type {any} */ when) {
      const date = new Date(when);
      return Number.isNaN(date.getTime())
        ? NONE
        : date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    },
    /** A stored value of any type as text: what a person would write, not its Python or JSON quoting. */
    stored: (/** @type {any} */ value) =>
      value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 1),
  };
  gymView.format = format;
})();
