#!/usr/bin/env python3
"""Lays out the pages for mdBook, and checks the links of the book: two steps of scripts/docs.sh.

    scripts/book.py lay target/book-src
    scripts/book.py check target/book

`lay` copies each page of docs/SUMMARY.md, and each other file that a page links to, into one folder, under their paths
in the repository. So a link works on both sides, for example one from docs/operate/ to deploy/. It fails if
docs/SUMMARY.md lacks a page of docs/, or docs/README.md one outside of docs/adr/.

`check` fails if a relative link of a built page leads to no file of the book, or to no anchor of that file.
"""

import html.parser
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "docs/SUMMARY.md"
INDEX = ROOT / "docs/README.md"
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//")


def fail(problems):
    if problems:
        sys.exit("\n".join(f"docs: {problem}" for problem in sorted(problems)))


def linked_files(page):
    """Returns the files and folders of the repository that a page links to."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    paths = {target.split("#")[0] for target in targets if not OUTSIDE.match(target)}
    return {pathlib.Path(os.path.normpath(page.parent / path)) for path in paths if path}


def lay(source):
    pages = linked_files(SUMMARY)
    exist = set((ROOT / "docs").rglob("*.md")) - {SUMMARY}
    problems = {f"docs/SUMMARY.md lacks {page.relative_to(ROOT)}" for page in exist - pages}
    described = {page for page in exist if ROOT / "docs/adr" not in page.parents} - {INDEX}
    lacking = described - linked_files(INDEX)
    problems |= {f"docs/README.md lacks {page.relative_to(ROOT)}" for page in lacking}
    files = pages.union(*(linked_files(page) for page in pages))
    for file in files:
        name = file.relative_to(ROOT)
        if not file.is_file():
            problems.add(f"a page links to {name}, which is not a file")
        elif file.suffix == ".md" and file not in pages:
            problems.add(f"docs/SUMMARY.md lacks {name}, to which a page links")
    fail(problems)

    shutil.rmtree(source, ignore_errors=True)
    for file in files:
        copy = source / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    # mdBook wants the summary in the source folder, so its links lose or gain a folder.
    def moved(link):
        return f"]({os.path.normpath(pathlib.Path('docs') / link[1])})"

    (source / "SUMMARY.md").write_text(re.sub(r"\]\(([^)]+)\)", moved, SUMMARY.read_text()))


class Page(html.parser.HTMLParser):
    """The relative links and the anchors of a built page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(path.read_text())

    def handle_starttag(self, _, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value and not OUTSIDE.match(value):
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def check(book):
    pages = {path: Page(path) for path in book.rglob("*.html")}
    problems, count = set(), 0
    for path, page in pages.items():
        for link in page.links:
            count += 1
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            file = pathlib.Path(os.path.normpath(path.parent / target)) if target else path
            if not file.is_file():
                problems.add(f"{path}: no file for {link}")
            elif file in pages and anchor not in pages[file].anchors:
                problems.add(f"{path}: no anchor for {link}")
    fail(problems)
    print(f"docs: {count} links of {len(pages)} pages lead somewhere; open {book}/index.html")


def main():
    steps = {"lay": lay, "check": check}
    if len(sys.argv) != 3 or sys.argv[1] not in steps:
        sys.exit(__doc__)
    steps[sys.argv[1]](pathlib.Path(sys.argv[2]))


main()
