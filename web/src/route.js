// Addresses: #/page?query. The query holds a question whole, so that its address asks it again.
import { useEffect, useState } from "preact/hooks";

function parsed() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "ask", query: new URLSearchParams(query), text: query };
}

export function useRoute() {
  const [route, setRoute] = useState(parsed);
  useEffect(() => {
    const changed = () => setRoute(parsed());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export function link(page, values = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined) query.append(name, one);
    }
  }
  const text = query.toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

export const go = (page, values) => {
  location.hash = link(page, values);
};
