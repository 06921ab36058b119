"""Rust files: their own code without comments, texts and tests."""

import re

# Comments and literals, so that what they say is not taken for code.
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<h>#*)".*?"(?P=h)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\\n])'""", re.DOTALL)

# A file's tests stand at its end, or in files of their own.
INLINE_TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*(?:pub(?:\([^)]*\))? )?mod \w+ \{", re.MULTILINE)


def own_code(text):
    """Rust code without comments, literals and inline tests."""
    code = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    tests = INLINE_TESTS.search(code)
    return code[:tests.start()] if tests else code


def is_test_file(path):
    """Whether a file of `src` holds tests, or helpers of tests."""
    return path.stem in ("tests", "test_util") or path.stem.endswith("_tests") or "tests" in path.parts
