// Starts the page: theme first, so that nothing flashes, then the figures.

function startTheme() {
  const root = document.documentElement;
  const asked = new URLSearchParams(location.search).get("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const set = (dark) => { root.dataset.theme = dark ? "dark" : "light"; root.style.colorScheme = root.dataset.theme; repaints.forEach((paint) => paint()); };
  set(asked ? asked === "dark" : system.matches);
  system.addEventListener("change", (event) => set(event.matches));
  $("theme").addEventListener("click", () => set(!isDark()));
}

function start() {
  startTheme();
  const data = JSON.parse($("data").textContent);
  $("bar-run").textContent = data.title;
  if (data.kind === "compare") drawCompare(data);
  else if (data.charts) drawRun(data);
  else drawUntimed(data);
  document.documentElement.dataset.ready = "yes";
}

start();
