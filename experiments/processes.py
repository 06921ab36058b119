"""Processes of caju on this machine, for the experiments of this folder."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile


class Server:
    """A dispatcher or a worker that listens on the loopback. `options` are those of `subprocess.Popen`."""

    def __init__(self, binary, role, *arguments, **options):
        self.log = tempfile.TemporaryFile()
        self.p = subprocess.Popen([binary, role, "--listen", "127.0.0.1:0", "--allow", "/", *map(str, arguments)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=self.log, text=True, **options)
        line = self.p.stdout.readline()
        if " listening on " not in line:
            self.log.seek(0)
            sys.exit(f"error: the {role} did not start: {self.log.read().decode()}")
        self.address = line.rsplit(" ", 1)[1].strip()

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)


def cpu_s(pid):
    """User and system seconds of a process so far; None if it has ended. "self" is this one."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
