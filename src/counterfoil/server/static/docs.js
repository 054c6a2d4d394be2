// Renders openapi.json as a page. Everything is put into the page as text, never as markup.
"use strict";

const METHODS = ["get", "put", "post", "delete", "patch"];
const DEEPEST = 6;

let api;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// The document's texts know two marks: `code`, and an empty line between paragraphs.
function prose(text, name = "p") {
  const fragment = document.createDocumentFragment();
  for (const paragraph of (text || "").trim().split(/\n\s*\n/)) {
    if (!paragraph) continue;
    const pieces = paragraph.split("`").map((piece, at) => (at % 2 ? element("code", {}, piece) : piece));
    fragment.append(element(name, {}, ...pieces));
  }
  return fragment;
}

function resolved(schema) {
  if (schema && schema.$ref) return api.components.schemas[schema.$ref.split("/").pop()] || {};
  return schema || {};
}

function referenceName(schema) {
  if (schema && schema.$ref) return schema.$ref.split("/").pop();
  if (schema && schema.allOf && schema.allOf.length === 1) return referenceName(schema.allOf[0]);
  return null;
}

function isNull(schema) {
  return schema.type === "null";
}

// What stands beside null, when a value may be absent.
function present(schema) {
  const choices = (schema.anyOf || schema.oneOf || []).filter((choice) => !isNull(choice));
  return choices.length === 1 ? { ...schema, anyOf: undefined, oneOf: undefined, ...choices[0] } : schema;
}

function typeName(schema) {
  if (!schema || Object.keys(schema).length === 0) return "any value";
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.map(typeName).join(" or ");
  const name = referenceName(schema);
  if (name) {
    const target = resolved(schema.$ref ? schema : schema.allOf[0]);
    return target.enum ? typeName(target) : name;
  }
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `array of ${typeName(schema.items)}`;
  if (schema.type === "object" && typeof schema.additionalProperties === "object") {
    return `object of ${typeName(schema.additionalProperties)}`;
  }
  if (schema.format) return `${schema.type} (${schema.format})`;
  return schema.type || "any value";
}

function limits(schema) {
  const core = present(schema);
  const said = [];
  const add = (key, before, after = "") => {
    if (core[key] !== undefined) said.push(`${before} ${core[key]}${after}`);
  };
  add("minimum", "at least");
  add("maximum", "at most");
  if (core.minLength === 1) said.push("not empty");
  else add("minLength", "at least", " characters");
  add("maxLength", "at most", " characters");
  add("minItems", "at least", " items");
  add("maxItems", "at most", " items");
  add("maxProperties", "at most", " entries");
  add("pattern", "matches");
  if (schema.default !== undefined && typeof schema.default !== "object") said.push(`default ${JSON.stringify(schema.default)}`);
  return said.join(", ");
}

// The schema that has fields to show below a value: of an object, of an array's items, of a map's values.
function inner(schema) {
  const core = present(schema);
  const target = core.allOf ? resolved(core.allOf[0]) : resolved(core);
  if (target.properties) return target;
  if (target.type === "array" && target.items) return inner(target.items);
  if (target.type === "object" && typeof target.additionalProperties === "object") return inner(target.additionalProperties);
  return null;
}

function fields(schema, depth = 0) {
  const required = new Set(schema.required || []);
  const list = element("div", { class: "schema" });
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = element(
      "div",
      { class: "row" },
      element("span", { class: "name" }, name),
      " ",
      element("span", { class: "quiet" }, typeName(field)),
      required.has(name) ? element("span", { class: "required" }, " required") : null,
    );
    const said = [field.description, limits(field)].filter(Boolean).join("; ");
    if (said) row.append(element("div", { class: "quiet" }, ...said.split("`")));
    const below = inner(field);
    if (below && depth < DEEPEST) row.append(lazily("fields", () => fields(below, depth + 1)));
    list.append(row);
  }
  if (!list.children.length) list.append(element("div", { class: "row quiet" }, "no fields"));
  return list;
}

// Rendered when it is opened: schemas may refer to themselves.
function lazily(label, render) {
  const details = element("details", { class: "more" }, element("summary", {}, label));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(render());
  });
  return details;
}

function sample(schema, depth = 0) {
  if (!schema) return null;
  if (schema.example !== undefined) return schema.example;
  if (schema.examples && schema.examples.length) return schema.examples[0];
  if (schema.const !== undefined) return schema.const;
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.anyOf || schema.oneOf) {
    const choices = schema.anyOf || schema.oneOf;
    return choices.some(isNull) ? null : sample(choices[0], depth);
  }
  if (schema.allOf) return sample(schema.allOf[0], depth);
  if (schema.$ref) return depth > DEEPEST ? {} : sample(resolved(schema), depth + 1);
  if (schema.enum) return schema.enum[0];
  if (schema.type === "array") return schema.items ? [sample(schema.items, depth + 1)] : [];
  if (schema.type === "object" || schema.properties) {
    const made = {};
    for (const [name, field] of Object.entries(schema.properties || {})) made[name] = sample(field, depth + 1);
    return made;
  }
  return { string: "string", integer: 1, number: 0.5, boolean: true, null: null }[schema.type] ?? {};
}

function codeBlock(text) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it by hand";
    }
  });
  return element("div", { class: "copy" }, element("pre", { tabindex: "0" }, element("code", {}, text)), button);
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curl(method, path, operation) {
  const url = location.origin + path.replaceAll(/\{(\w+)\}/g, (_, name) => name.toUpperCase());
  const streams = JSON.stringify(operation.responses).includes("text/event-stream");
  const lines = [`curl ${streams ? "-N " : ""}${method === "get" ? "" : `-X ${method.toUpperCase()} `}${quoted(url)}`];
  const needsKey = (operation.security || api.security || []).some((choice) => Object.keys(choice).length);
  if (needsKey) lines.push('-H "Authorization: Bearer $COUNTERFOIL_KEY"');
  for (const header of (operation.parameters || []).filter((found) => found.in === "header" && found.required)) {
    lines.push(`-H ${quoted(`${header.name}: ${header.name.toUpperCase()}`)}`);
  }
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (content && operation.requestBody.required) {
    const body = content.example !== undefined ? content.example : sample(content.schema);
    lines.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body, null, 2))}`);
  }
  return lines.join(" \\\n  ");
}

function parameterTable(parameters) {
  const rows = parameters.map((parameter) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, parameter.name), parameter.required ? element("span", { class: "required" }, " required") : null),
      element("td", { class: "quiet" }, parameter.in),
      element(
        "td",
        {},
        prose(parameter.description),
        element("span", { class: "quiet" }, [typeName(parameter.schema), limits(parameter.schema)].filter(Boolean).join(", ")),
      ),
    ),
  );
  return element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows)));
}

function responseTable(responses) {
  const rows = Object.entries(responses).map(([status, response]) => {
    const cell = element("td", {}, prose(response.description));
    for (const [mediaType, content] of Object.entries(response.content || {})) {
      const below = status < "300" && content.schema ? inner(content.schema) : null;
      if (mediaType !== "application/json") cell.append(element("code", {}, mediaType));
      if (below) {
        cell.append(lazily("fields", () => fields(below)));
        cell.append(lazily("example", () => codeBlock(JSON.stringify(sample(content.schema), null, 2))));
      }
    }
    return element("tr", {}, element("td", { class: "status" }, status), cell);
  });
  return element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows)));
}

function operationBody(method, path, operation) {
  const body = element("div", { class: "body" }, prose(operation.description));
  if (operation["x-roles"]) {
    body.append(element("p", { class: "roles" }, `For the roles ${operation["x-roles"].join(", ")}.`));
  }
  if (operation.parameters) body.append(element("h3", {}, "Parameters"), parameterTable(operation.parameters));
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (content) {
    const below = inner(content.schema);
    const mark = operation.requestBody.required ? "" : " (optional)";
    body.append(element("h3", {}, `Body${mark}`));
    if (below) body.append(fields(below));
  }
  body.append(element("h3", {}, "Try it"), codeBlock(curl(method, path, operation)));
  body.append(element("h3", {}, "Answers"), responseTable(operation.responses));
  return body;
}

function operationCard(method, path, operation) {
  const card = element(
    "details",
    { class: "operation", id: operation.operationId },
    element(
      "summary",
      {},
      element("span", { class: `method ${method}` }, method.toUpperCase()),
      element("span", { class: "path" }, path),
      element("span", { class: "summary" }, operation.summary || ""),
    ),
  );
  card.addEventListener("toggle", () => {
    if (card.open && card.children.length === 1) card.append(operationBody(method, path, operation));
  });
  card.dataset.words = JSON.stringify([method, path, operation]).toLowerCase();
  return card;
}

function operationsOf(tag) {
  const found = [];
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const method of METHODS) {
      const operation = methods[method];
      if (operation && (operation.tags || []).includes(tag)) found.push([method, path, operation]);
    }
  }
  return found;
}

function tagSection(tag) {
  const cards = operationsOf(tag.name).map((found) => operationCard(...found));
  return element("section", { id: `tag-${tag.name}` }, element("h2", {}, tag.name), prose(tag.description), ...cards);
}

function errorSection(codes) {
  const rows = codes.map((found) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, found.code)),
      element("td", { class: "status" }, String(found.status)),
      element("td", {}, found.message),
    ),
  );
  return element(
    "section",
    { id: "errors" },
    element("h2", {}, "Error codes"),
    element("p", {}, "The closed set of error.code."),
    element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows))),
  );
}

function schemaSection(schemas) {
  const cards = Object.entries(schemas).map(([name, schema]) => {
    const card = element(
      "details",
      { class: "operation", id: `schema-${name}` },
      element("summary", {}, element("span", { class: "path" }, name), element("span", { class: "summary" }, (schema.description || "").split("\n")[0].replaceAll("`", ""))),
    );
    card.addEventListener("toggle", () => {
      if (!card.open || card.children.length > 1) return;
      const content = schema.properties ? fields(schema) : element("p", {}, typeName(schema));
      card.append(element("div", { class: "body" }, content));
    });
    return card;
  });
  return element("section", { id: "schemas" }, element("h2", {}, "Schemas"), ...cards);
}

function index() {
  const fragment = document.createDocumentFragment();
  for (const tag of api.tags) {
    const items = operationsOf(tag.name).map(([method, path, operation]) =>
      element("li", { "data-operation": operation.operationId }, element("a", { href: `#${operation.operationId}`, title: `${method.toUpperCase()} ${path}` }, operation.summary)),
    );
    fragment.append(element("section", {}, element("h2", {}, tag.name), element("ul", {}, ...items)));
  }
  const rest = [["errors", "Error codes"], ["schemas", "Schemas"]];
  const items = rest.map(([id, label]) => element("li", {}, element("a", { href: `#${id}` }, label)));
  fragment.append(element("h2", {}, "reference"), element("ul", {}, ...items));
  return fragment;
}

function find(event) {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const card of document.querySelectorAll(".operation[data-words]")) {
    card.hidden = !words.every((word) => card.dataset.words.includes(word));
  }
  for (const item of document.querySelectorAll("#index li[data-operation]")) {
    item.hidden = document.getElementById(item.dataset.operation).hidden;
  }
  for (const section of document.querySelectorAll("#main > section, #index > section")) {
    const found = [...section.querySelectorAll("[data-words], [data-operation]")];
    section.hidden = found.length > 0 && found.every((item) => item.hidden);
  }
}

// The list of operations on a narrow screen; on a wide one it is always shown.
function showMenu(open) {
  const button = document.getElementById("menu");
  button.setAttribute("aria-expanded", String(open));
  button.textContent = open ? "Close" : "Menu";
  button.closest("nav").classList.toggle("open", open);
}

function prepareMenu() {
  const button = document.getElementById("menu");
  const nav = button.closest("nav");
  const isOpen = () => button.getAttribute("aria-expanded") === "true";
  button.addEventListener("click", () => showMenu(!isOpen()));
  document.getElementById("index").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    showMenu(false);
    if (link.hash === location.hash) openNamed(); // no hashchange follows
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isOpen()) return;
    showMenu(false);
    button.focus();
  });
  nav.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !nav.contains(event.relatedTarget)) showMenu(false);
  });
}

function openNamed() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target instanceof HTMLDetailsElement) target.open = true;
  target.scrollIntoView();
}

async function render() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  api = await response.json();
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("index").append(index());
  document.getElementById("main").replaceChildren(
    element("h1", {}, `${api.info.title} API`),
    prose(api.info.description),
    element("p", {}, element("a", { href: "openapi.json" }, "openapi.json"), " is the same for programs."),
    ...api.tags.map(tagSection),
    errorSection(api["x-error-codes"] || []),
    schemaSection(api.components.schemas),
  );
  document.getElementById("find").addEventListener("input", find);
  prepareMenu();
  window.addEventListener("hashchange", openNamed);
  openNamed();
}

render().catch((error) => {
  document.getElementById("state").textContent = `The API document could not be read: ${error.message}`;
});
