// The page of a rule: the Markdown that pages use, as elements. Text enters as text only.

// `code` and **bold** inside a line.
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**")) return h("b", {}, part.slice(2, -2));
    return part.replace(/\[([^\]]+)\]\([^)]+\)/g, "$1");
  });
}

// A block of lines without a blank one: a list, or a paragraph.
function proseBlock(lines) {
  if (!lines.every((line) => /^(- | {2,})/.test(line)) || !lines[0].startsWith("- ")) return h("p", {}, inline(lines.join(" ")));
  const items = lines.join("\n").split(/^- /m).filter(Boolean).map((item) => item.replace(/\s+/g, " ").trim());
  return h("ul", {}, items.map((item) => h("li", {}, inline(item))));
}

function rulePage(text) {
  const nodes = [];
  let lines = [], code = null;
  const close = () => { if (lines.length) nodes.push(proseBlock(lines)); lines = []; };
  for (const line of text.split("\n")) {
    if (line.startsWith("```")) {
      if (code) { nodes.push(h("pre", { class: "excerpt", tabindex: "0", "aria-label": "Example" }, h("code", {}, code.map((row) => h("span", {}, row || " ", "\n"))))); code = null; }
      else { close(); code = []; }
    } else if (code) code.push(line);
    else if (/^#+ /.test(line)) { close(); if (line.startsWith("## ")) nodes.push(h("h3", {}, line.slice(3))); }
    else if (line.trim()) lines.push(line);
    else close();
  }
  close();
  return nodes;
}

// What a rule means, behind a line to click on.
function explanation(rule, pages) {
  return pages?.[rule] ? h("details", { class: "explanation" }, h("summary", {}, "What happens, and the fix"), rulePage(pages[rule])) : null;
}
