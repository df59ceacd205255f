# SPDX-License-Identifier: Apache-2.0
"""Running the command wsm."""

import os
import pty
import select
import signal
import subprocess
import time

from harness import BUILD, REPORT, Hang, environment, wait_for

WSM = os.path.join(BUILD, 'mount-helpers/wsm/wsm')


def wsm(*words, check=0, env=None, timeout=120, **more):
    """Runs it to its end. `check` is the exit status that it must have; None: any."""
    more.setdefault('stdin', subprocess.DEVNULL)
    more.setdefault('stdout', subprocess.PIPE)
    more.setdefault('text', True)
    all_env = environment() | {'LC_ALL': 'C.UTF-8'} | (env or {})
    done = subprocess.run([WSM, *map(str, words)], stderr=subprocess.PIPE, timeout=timeout, env=all_env, check=False,
                          **more)
    said = done.stderr if more['text'] else done.stderr.decode(errors='replace')
    assert not REPORT.search(said), said
    if check is not None:
        assert done.returncode == check, (words, done.returncode, done.stdout, said)
    return done


def fails(*words, **more):
    """What it says when it fails as it should."""
    done = wsm(*words, check=1, **more)
    assert done.stdout == ''
    return done.stderr


def start(daemon, *words, **more):
    """One that runs; ended with the daemon at the latest."""
    more.setdefault('stdin', subprocess.DEVNULL)
    return daemon.popen(WSM, *words, env=environment() | {'LC_ALL': 'C.UTF-8'}, **more)


def state_of(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        return f.read().rsplit(')', 1)[1].split()[0]


def stopped(child):
    """Stops a process, waits until it is, and lets it go on."""
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(child.pid) == 'T')
    os.kill(child.pid, signal.SIGCONT)
    wait_for(lambda: state_of(child.pid) != 'T')


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, words, **env):
        self.shown = b''
        self.status = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execvpe(words[0], [str(w) for w in words], environment() | {'LC_ALL': 'C.UTF-8'} | env)
            finally:
                os._exit(126)

    def type(self, data):
        while data:
            data = data[os.write(self.fd, data):]

    def more(self, timeout=0.1):
        """Takes in what there is; False at the end."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return True
        try:
            piece = os.read(self.fd, 65536)
        except OSError:  # EIO: nobody has it open any more
            return False
        self.shown += piece
        return bool(piece)

    def wait_shown(self, text, timeout=60):
        end = time.monotonic() + timeout
        while text not in self.shown:
            if not self.more() or time.monotonic() > end:
                raise Hang(f'{text} was not shown, but {self.shown}')

    def wait(self, timeout=60):
        end = time.monotonic() + timeout
        while self.more():
            if time.monotonic() > end:
                self.kill()
                raise Hang(f'it did not end; it has shown {self.shown}')
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return self.status

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.fd)
            self.status = -9


def at_terminal(words, data=b'', after=None):
    """Runs a program at a terminal, types `data` once it has shown `after`; its status and what was shown."""
    t = Terminal(words)
    try:
        if after:
            t.wait_shown(after)
        t.type(data)
        return t.wait(), t.shown
    finally:
        t.kill()
