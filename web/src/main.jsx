// The dashboard: one page at a time by the address, and the theme.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "./style.css";
import { TokenGate } from "./parts.jsx";
import { Ask } from "./pages/ask.jsx";
import { Leaderboard } from "./pages/board.jsx";
import { Compare } from "./pages/compare.jsx";
import { Audit, Catalogue, Runs } from "./pages/lists.jsx";
import { Recommend } from "./pages/recommend.jsx";
import { Scale } from "./pages/scale.jsx";
import { Tasks } from "./pages/tasks.jsx";
import { link, useRoute } from "./route.js";

const PAGES = {
  ask: ["Ask", Ask],
  recommend: ["Recommend", Recommend],
  scale: ["Scale", Scale],
  compare: ["Compare", Compare],
  tasks: ["Tasks", Tasks],
  runs: ["Runs", Runs],
  leaderboard: ["Leaderboard", Leaderboard],
  audit: ["Audit", Audit],
  catalogue: ["Catalogue", Catalogue],
};
const THEME = "forerun-theme";

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem(THEME, theme);
    dispatchEvent(new Event(THEME));
  }, [theme]);
  return (
    <label class="theme">
      <span class="unseen">Theme</span>
      <select value={theme} onChange={(event) => setTheme(event.target.value)}>
        <option value="">as the system</option>
        <option value="light">light</option>
        <option value="dark">dark</option>
      </select>
    </label>
  );
}

function App() {
  const { page, query } = useRoute();
  const main = useRef();
  const first = useRef(true);
  const [title, Page] = PAGES[page] ?? [];
  useEffect(() => {
    document.title = `${title ?? "No such page"} · forerun`;
    if (!first.current) main.current.focus({ preventScroll: true });
    first.current = false;
  }, [page]);
  return (
    <>
      <a class="skip" href={link(page, Object.fromEntries(query))} onClick={(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
      <header class="top">
        <a class="name" href={link("ask")}>forerun</a>
        <nav aria-label="Pages">
          {Object.entries(PAGES).map(([name, [words]]) => (
            <a key={name} href={link(name)} aria-current={name === page ? "page" : undefined}>{words}</a>
          ))}
        </nav>
        <Theme />
      </header>
      <main ref={main} tabIndex={-1}>
        <TokenGate />
        {Page ? <Page key={page} query={query} /> : <p>There is no page {page}. <a href={link("ask")}>Ask a question</a>.</p>}
      </main>
    </>
  );
}

render(<App />, document.getElementById("app"));
