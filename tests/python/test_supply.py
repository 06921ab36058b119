"""`scripts/check-supply`: that it refuses what deny.toml refuses, and finds an advisory that applies."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check-supply"


@pytest.fixture(scope="module")
def supply():
    loader = importlib.machinery.SourceFileLoader("check_supply", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_supply", loader))
    # No compiled copy next to the script.
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@pytest.mark.parametrize("expression, fine", [
    ("MIT", True),
    ("GPL-3.0", False),
    ("MIT/GPL-3.0", True),
    ("MIT AND GPL-3.0", False),
    ("(MIT OR GPL-3.0) AND Zlib", True),
    ("GPL-3.0 OR MIT AND GPL-2.0", False),
    ("Apache-2.0 WITH LLVM-exception", True),
    ("MIT WITH LLVM-exception", False),
])
def test_a_licence_has_to_be_allowed(supply, expression, fine):
    allowed = {"MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"}
    assert supply.satisfied(expression, allowed) == fine


@pytest.mark.parametrize("requirement, version, fits", [
    (">= 1.2.3", "1.2.3", True),
    (">= 1.2.3", "1.2.3-beta.1", False),
    (">= 1.2.3, < 1.3.0", "1.10.0", False),
    ("^0.2.1", "0.2.9", True),
    ("^0.2.1", "0.3.0", False),
    ("1.2", "1.9.0", True),
    ("~1.2", "1.3.0", False),
    ("=1.2", "1.2.7", True),
    ("< 0.10", "0.9.12", True),
    ("> 1.0.0", "1.0.0+build", False),
])
def test_versions_are_compared_as_cargo_does(supply, requirement, version, fits):
    assert supply.matches(requirement, version) == fits


def test_packages_that_deny_toml_refuses_are_named(supply):
    rules = {"licenses": {"allow": ["MIT"]}, "sources": {"allow-registry": ["https://here"]},
             "bans": {"deny": [{"name": "bad", "reason": "it is"}], "skip": [{"crate": "gone@1.0.0"}]}}
    at_home = {"source": "registry+https://here", "checksum": "0"}
    packages = [{"name": "two", "version": "1.0.0", **at_home}, {"name": "two", "version": "2.0.0", **at_home},
                {"name": "bad", "version": "1.0.0", "source": "git+https://there"}]
    assert list(supply.sources(packages, rules)) == ["bad 1.0.0 comes from git+https://there, which deny.toml does not allow"]
    banned, doubled, unneeded = supply.bans(packages, rules)
    assert "bad 1.0.0 is banned" in banned and "1.0.0, 2.0.0" in doubled and "gone@1.0.0" in unneeded
    described = [{"name": "a", "version": "1.0.0", "license": "GPL-3.0"}, {"name": "b", "version": "1.0.0"}]
    assert [m.split(":")[0] for m in supply.licences(described, rules)] == [
        "a 1.0.0 is under GPL-3.0, which deny.toml does not allow", "b 1.0.0 names no licence"]


def test_an_advisory_fails_the_check_and_names_itself(tmp_path):
    folder = tmp_path / "crates/tokio"
    folder.mkdir(parents=True)
    text = '```toml\n[advisory]\nid = "RUSTSEC-2099-0001"\npackage = "tokio"\n\n[versions]\npatched = ["{}"]\n```\n\n# A\n'
    run = lambda: subprocess.run([sys.executable, str(SCRIPT), "--advisories", str(tmp_path)], capture_output=True, text=True)
    (folder / "RUSTSEC-2099-0001.md").write_text(text.format(">= 1.0.0"))
    fixed = run()
    (folder / "RUSTSEC-2099-0001.md").write_text(text.format(">= 99.0.0"))
    open_ = run()
    assert "RUSTSEC-2099-0001 (vulnerability)" not in fixed.stderr
    assert open_.returncode == 1 and "RUSTSEC-2099-0001 (vulnerability)" in open_.stderr


def test_the_licences_of_what_is_linked_are_listed_with_their_texts():
    done = subprocess.run([sys.executable, str(SCRIPT), "--third-party"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    heading, _, texts = done.stdout.partition("\n\n")
    listed, *sections = texts.split("\n" + "=" * 100 + "\n")
    packages = listed.splitlines()
    assert heading.startswith(f"caju links these {len(packages)} packages"), heading
    assert len(sections) == len(packages) > 100
    # Each with a licence; a build tool and a library of tests are not linked.
    names = {p.split()[0]: p.split()[2] for p in packages}
    assert names["tokio"] == "MIT" and {"sled", "arrow-array", "pyo3"} <= names.keys()
    assert not {"proptest", "prost-build", "caju"} & names.keys()
    (tokio,) = [s for s in sections if s.startswith("tokio ")]
    assert "--- LICENSE" in tokio and "Permission is hereby granted" in tokio
