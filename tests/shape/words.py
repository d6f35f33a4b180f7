"""Check of the words in the product's docstrings and comments.

    PYTHONPATH=tests python -m shape.words

Prints FILE:LINE: reason for each finding, and ends with 1 if there is one. The rules:

- The first line of a docstring has at most 12 words: a whole sentence or noun phrase. Details
  follow after a blank line. (ruff checks the full stop, and the imperative of functions.)
- Subjects are nouns of the domain: no word of _BANNED, and no sentence whose subject is a clause,
  as in "What a plan needs is ...". Text in quotes or backquotes is not read.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = ("client/gradwire", "server/gradwire_server", "server/gradwire_ray")
_MOST_WORDS = 12
_QUOTED = re.compile(r'`[^`]*`|"[^"\n]*"')
_BANNED = re.compile(
    r"\b(who|whom|whoever|whomever|whatever|whichever|that\s+which|those\s+that)\b"
    r"|(?:^|\n\s*\n|[.;]\s)\s*(what\b[^.:;?]*\s(?:is|are|was|were|has|have|does|do|can)\b)",
    re.IGNORECASE,
)


def findings(source: str) -> list[tuple[int, str]]:
    """Return the line and the reason of each finding in a module."""
    found: list[tuple[int, str]] = []
    texts: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
            texts.append((node.body[0].lineno, text))
            if (words := len(text.split("\n")[0].split())) > _MOST_WORDS:
                found.append((texts[-1][0], f"the first line has {words} words, not {_MOST_WORDS}"))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    texts += [(token.start[0], token.string.lstrip("#: ")) for token in comments]
    for line, text in texts:
        plain = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), text)
        for match in _BANNED.finditer(plain):
            group = match.lastindex or 0
            found.append((line + text.count("\n", 0, match.start(group)), f"{match[group]!r}"))
    return sorted(found)


if __name__ == "__main__":
    FILES = (file for folder in _FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))
    SOURCES = {file: file.read_text(encoding="utf-8") for file in FILES if "v1" not in file.parts}
    FOUND = [(f.relative_to(ROOT), *one) for f, text in SOURCES.items() for one in findings(text)]
    sys.stdout.writelines(f"{file}:{line}: {reason}\n" for file, line, reason in FOUND)
    sys.exit(1 if FOUND else 0)
