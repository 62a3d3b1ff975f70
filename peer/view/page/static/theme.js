// Light or dark: as the system says, until the reader chooses.

import { mark, place } from "./dom.js";

const KEY = "coordinator-free-theme";

export function followTheme(changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = place("theme");
  let chosen = remembered();
  const apply = () => {
    const theme = chosen || (system.matches ? "dark" : "light");
    mark(document.documentElement, "data-theme", theme);
    mark(button, "aria-label", theme === "dark" ? "Use light colors" : "Use dark colors");
    changed();
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(KEY, chosen); } catch { /* a file without storage: for this visit only */ }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function remembered() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}
