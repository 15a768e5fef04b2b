"""Checks the built site: links lead somewhere, and no page loads anything from another host."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
_LOADED_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "manifest"}


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and set(given.get("rel", "").split()) & _LOADED_RELATIONS:
            self.loads.append(given.get("href", ""))
        elif tag in _LOADED and _LOADED[tag] in given:
            self.loads.append(given[_LOADED[tag]])


def find_problems(root: Path) -> list[str]:
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in sorted(root.rglob("*.html"))}
    problems = []
    for file, page in pages.items():
        name = file.relative_to(root)
        problems += [f"{name} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for link in page.links:
            if (problem := _find_problem(root, file, link, pages)) and file.name != "404.html":
                problems.append(f"{name}: {problem}")
    return problems if pages else ["there are no pages"]


def _find_problem(root: Path, file: Path, link: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    path = unquote(parts.path)
    target = (file.parent / path).resolve() if path else file
    if path.startswith("/"):
        target = root / path.lstrip("/")
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return f"{link} leads nowhere"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"{link}: there is no such section"
    return ""


if __name__ == "__main__":
    found = find_problems(Path(sys.argv[1]).resolve())
    sys.exit("\n".join(found) if found else None)
