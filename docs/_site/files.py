"""What the site is built from: files of the repository, each under its path there, so that links lead to the same place in both."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parents[2]
_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put each decision into the navigation, below the page that lists them."""
    [project] = [section["Project"] for section in config.nav or () if "Project" in section]
    [decisions] = [section["Decisions"] for section in project if "Decisions" in section]
    decisions += sorted(path.relative_to(_ROOT).as_posix() for path in _ROOT.glob("docs/decisions/[0-9]*.md"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages at the top, all of docs/, and what these link to elsewhere in the repository."""
    docs = [file for file in files if file.src_dir == config.docs_dir]
    uris = [*_TOP, *(f"docs/{file.src_uri}" for file in docs if file.inclusion.is_included())]
    uris += sorted({link for uri in uris if uri.endswith(".md") for link in _links(uri)}.difference(uris))
    theirs = [file for file in files if file not in docs]
    return Files([*theirs, *(File(uri, str(_ROOT), config.site_dir, config.use_directory_urls) for uri in uris)])


def _links(page: str) -> list[str]:
    """Return the files that a page links to, by their paths in the repository."""
    links = _LINK.findall((_ROOT / page).read_text(encoding="utf-8"))
    paths = [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links]
    return [path for path in paths if not path.startswith("..") and (_ROOT / path).is_file()]
