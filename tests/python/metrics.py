"""Reads the metrics of a dispatcher."""

import re
import urllib.request

from conftest import wait_for

SAMPLE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)')


class Metrics:
    """The metrics of a dispatcher."""

    def __init__(self, dispatcher):
        line = dispatcher.process.stdout.readline()
        words = "caju dispatcher serves "
        assert line.startswith(words), line
        self.url = line.removeprefix(words).strip()

    def text(self):
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            return answer.read().decode()

    def values(self):
        """The values by name, or by name and the values of the labels in the order of their names."""
        found = {}
        for line in self.text().splitlines():
            if not line.startswith("#"):
                name, labels, value = SAMPLE.fullmatch(line).groups()
                labels = [text for _, text in sorted(re.findall(r'(\w+)="(.*?)"', labels or ""))]
                found[(name, *labels) if labels else name] = float(value)
        return found

    def wait_for(self, expected):
        """Waits until these metrics have these values: workers and readers report with their heartbeats."""
        last = {}

        def probe():
            found = self.values()
            last.clear()
            last.update({name: (found.get(name), value) for name, value in expected.items() if found.get(name) != value})
            return not last

        try:
            wait_for("such metrics", probe)
        except AssertionError:
            raise AssertionError(f"(found, expected): {last}") from None
