#!/usr/bin/env python3
"""Renders the chart to plain manifests, without Helm.

usage: deploy/kubernetes/render.py [--name caju] [--namespace caju] [--set KEY=VALUE ...] [--check | > manifests.yaml]

It knows the part of Helm's template language that the chart uses: values (`{{ .Values.a.b }}`, `{{ .Release.Name }}`,
`{{ .Release.Namespace }}`), `add VALUE N`, `if`/`else`/`end`, `range`/`end` over lists, and `toYaml ... | nindent N`. Anything
else is an error. The namespace is among the manifests, unless `--set namespace.create=false`. --check compares the result
with caju.yaml in the folder of this script. Needs PyYAML.
"""

import argparse
import pathlib
import re
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
TAG = re.compile(r"\{\{(-?)\s*(.*?)\s*\}\}")


class Wrong(Exception):
    """A template that cannot be rendered."""


def value(path, scope):
    if path == ".":
        return scope["."]
    found = scope
    for key in path.removeprefix(".").split("."):
        if not isinstance(found, dict) or key not in found:
            raise Wrong(f"no value {path}")
        found = found[key]
    return found


def text(found):
    return str(found).lower() if isinstance(found, bool) else str(found)


def expression(tag, scope):
    if match := re.fullmatch(r"toYaml (\.[\w.]+) \| nindent (\d+)", tag):
        pad = " " * int(match[2])
        lines = yaml.safe_dump(value(match[1], scope), sort_keys=False).rstrip().split("\n")
        return "".join(f"\n{pad}{line}" for line in lines)
    if match := re.fullmatch(r"add (\.[\w.]+) (\d+)", tag):
        return str(value(match[1], scope) + int(match[2]))
    if re.fullmatch(r"\.[\w.]*", tag):
        return text(value(tag, scope))
    raise Wrong(f"`{tag}` is not known to this script")


def parse(template):
    """Text and tags, in turn. A dash at the left takes the white space before the tag away, as in Helm."""
    parts, at = [], 0
    for match in TAG.finditer(template):
        before = template[at:match.start()]
        parts += [("text", before.rstrip() if match[1] else before), ("tag", match[2])]
        at = match.end()
    return [*parts, ("text", template[at:])]


def block(parts, i, scope, live):
    """Renders up to the `else` or `end` of a block: the text, and where it stopped."""
    out = []
    while i < len(parts):
        kind, what = parts[i]
        i += 1
        if kind == "text":
            out.append(what)
        elif what in ("end", "else"):
            return "".join(out), i, what
        elif what.startswith("if "):
            chosen = bool(value(what[3:], scope)) if live else False
            then, i, stop = block(parts, i, scope, live and chosen)
            other = ""
            if stop == "else":
                other, i, stop = block(parts, i, scope, live and not chosen)
            out.append(then if chosen else other)
        elif what.startswith("range "):
            items = value(what[6:], scope) if live else []
            _, end, _ = block(parts, i, scope, False)
            out += [block(parts, i, {**scope, ".": item}, True)[0] for item in items]
            i = end
        elif live:
            out.append(expression(what, scope))
    return "".join(out), i, None


def render(values, name, namespace):
    scope = {"Values": values, "Release": {"Name": name, "Namespace": namespace}}
    documents = []
    # The namespace first: manifests are applied in their order.
    for file in sorted((HERE / "chart" / "templates").glob("*.yaml"), key=lambda file: (file.stem != "namespace", file.name)):
        try:
            rendered, _, stop = block(parse(file.read_text(encoding="utf-8")), 0, scope, True)
        except Wrong as e:
            raise Wrong(f"{file.name}: {e}") from None
        if stop:
            raise Wrong(f"{file.name}: `{stop}` without a beginning")
        if rendered.strip():
            documents.append(rendered.strip())
    return "\n---\n".join(documents) + "\n"


def converted(text, default):
    """A value of the kind that values.yaml has at this place."""
    if isinstance(default, str):
        return text
    try:
        new = yaml.safe_load(text)
    except yaml.YAMLError:
        new = None
    if type(new) is not type(default) or isinstance(new, dict):
        kind = {bool: "true or false", int: "a whole number", list: "a list, such as [s3://bucket/train]"}
        raise Wrong(f"expected {kind.get(type(default), 'a value for one of its keys, such as KEY.NAME=VALUE')}")
    return new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="caju", help="name of the release")
    parser.add_argument("--namespace", default="caju")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value, such as keda.enabled=false")
    parser.add_argument("--check", action="store_true", help="compare with caju.yaml")
    args = parser.parse_args()
    values = yaml.safe_load((HERE / "chart" / "values.yaml").read_text(encoding="utf-8"))
    values["namespace"]["create"] = True
    for setting in args.set:
        path, _, new = setting.partition("=")
        *parents, last = path.split(".")
        target = values
        for key in parents:
            target = target.get(key) if isinstance(target, dict) else None
        if not isinstance(target, dict) or last not in target:
            sys.exit(f"error: --set {setting}: values.yaml has no {path}")
        try:
            target[last] = converted(new, target[last])
        except Wrong as e:
            sys.exit(f"error: --set {setting}: {e}")
    try:
        rendered = render(values, args.name, args.namespace)
    except Wrong as e:
        sys.exit(f"error: {e}")
    if not args.check:
        sys.stdout.write(rendered)
    elif rendered != (HERE / "caju.yaml").read_text(encoding="utf-8"):
        sys.exit("error: caju.yaml is not what the chart gives; run deploy/kubernetes/render.py > deploy/kubernetes/caju.yaml")


if __name__ == "__main__":
    main()
