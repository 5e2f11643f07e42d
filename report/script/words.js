// Values of JSON in words, for the report and for the page of `ratchet serve`.
function words(name) {
  return name.replaceAll("_", " ");
}

function inWords(value) {
  if (Array.isArray(value)) return value.map(inWords).join(value.some((item) => typeof item === "object") ? "\n" : ", ") || "–";
  if (value && typeof value === "object") return Object.entries(value).map(([key, field]) => `${words(key)}: ${inWords(field)}`).join("; ");
  return value === null || value === "" ? "–" : value === true ? "yes" : value === false ? "no" : String(value);
}
