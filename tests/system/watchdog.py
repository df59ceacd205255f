# SPDX-License-Identifier: Apache-2.0
"""Frees a test run that hangs in the mount.

A process that waits for a FUSE request which nobody answers cannot be killed; only aborting the
connection frees it. So this runs beside the tests, as a process of its own: told on standard input
what is mounted and how long the present test may take, it aborts every connection when that time
is over, and cleans up when the tests end without a word."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time


not_for_children = []  # descriptors of the tests' own end


def unescape(text):
    return text.encode().decode('unicode_escape').encode('latin-1').decode(errors='surrogateescape')


def mounts_below(top):
    """(mount point, device minor) of all FUSE mounts below a directory, the deepest first."""
    found = []
    with open('/proc/self/mountinfo', errors='surrogateescape') as f:
        for line in f:
            words = line.split()
            point = unescape(words[4])
            kind = words[words.index('-') + 1]
            if kind.startswith('fuse') and kind != 'fusectl' and (point + '/').startswith(top + '/'):
                found.append((point, int(words[2].split(':')[1])))
    return sorted(found, reverse=True)


def abort(control, minor):
    try:
        fd = os.open(f'{control}/{minor}/abort', os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, b'1')
    finally:
        os.close(fd)
    return True


def abort_all(top, control):
    for point, minor in mounts_below(top):
        print(f'watchdog: aborting {point}', file=sys.stderr, flush=True)
        abort(control, minor)


def processes_of(path):
    """Daemons that run on directories below `path`."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/cmdline', 'rb') as f:
                words = f.read().split(b'\0')
        except OSError:
            continue
        if os.path.basename(words[0]) == b'wsmfs' and any(path.encode() in w for w in words):
            found.append(int(pid))
    return found


def clear(top, control):
    """The tests were killed: nothing of them may stay."""
    abort_all(top, control)
    for point, _ in mounts_below(top):
        subprocess.run(['umount', '-l', point], check=False)
    for pid in processes_of(top + '/'):
        os.kill(pid, signal.SIGKILL)
    if control.startswith(top):
        subprocess.run(['umount', control], check=False)
    shutil.rmtree(top, ignore_errors=True)


def main():
    top, control = sys.argv[1:3]
    deadline = None
    while True:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0], [], [], wait)
        if not ready:
            abort_all(top, control)
            deadline = time.monotonic() + 10
            continue
        text = os.read(0, 4096)
        if not text:
            clear(top, control)
            return
        word = text.split()[-1]
        if word == b'done':
            return
        deadline = time.monotonic() + float(word)


if __name__ == '__main__':
    main()
