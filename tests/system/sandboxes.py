# SPDX-License-Identifier: Apache-2.0
"""Sandboxes by themselves, without a mount: the sandbox's functions as a command (compiled here), and
a small guest that runs shell scripts."""

import errno
import glob
import os
import signal
import socket
import subprocess
import textwrap

import pytest

from harness import CHECKOUT, SANITIZER, run, wait_for

# An ordinary user of the tests and a tenant of root's: ids that no user of the machine has.
USER_ID = 61234
TENANT_ID = 61235
TENANT_GROUP = 61236
MAPPED_ID = 100000

FLAGS = {'address': ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined'],
         'thread': ['-fsanitize=thread']}.get(SANITIZER, [])


def compile_all(place):
    """The driver and the guest, in a directory that every user can pass through."""
    sources = [f'{CHECKOUT}/tests/unit/test_sandbox_driver.c']
    for pattern in ('backends/local/sandbox*.c', 'backends/local/shown*.c', 'backends/local/idmap.c', 'backends/shared/keys.c',
                    'backends/local/cgroup*.c', 'fs/base/*.c', 'fs/config/*.c'):
        sources += sorted(glob.glob(f'{CHECKOUT}/{pattern}'))
    common = ['cc', '-std=gnu17', '-D_GNU_SOURCE', '-DWSMFS_VERSION="test"', '-O1', '-g', f'-I{CHECKOUT}']
    run(*common, *FLAGS, *sources, '-ljson-c', '-linih', '-lpthread', '-o', f'{place}/driver')
    run(*common, '-static', f'{CHECKOUT}/tests/unit/test_sandbox_guest.c', '-o', f'{place}/guest')
    return place


class Refused(AssertionError):
    """args: errno, sentence."""


class Sandbox:
    def __init__(self, box, name, answer):
        self.box = box
        self.name = name
        self.pid = int(answer['pid'])
        self.mark = answer['mark']

    def run(self, script, timeout=60):
        """What a job printed, and how it ended; None when the process that serves it was killed."""
        d = os.open(self.box.sockets, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(timeout)
            s.connect(f'/proc/self/fd/{d}/{self.name}')
            os.close(d)
            s.sendall(textwrap.dedent(script).encode())
            s.shutdown(socket.SHUT_WR)
            said = b''
            while piece := s.recv(1 << 16):
                said += piece
        text, _, end = said.decode(errors='replace').rpartition('\nended ')
        return text, int(end) if end else None

    def out(self, script, **more):
        text, code = self.run(script, **more)
        assert code == 0, f'ended with {code}: {text}'
        return text.strip()

    def python(self, program, **more):
        return self.out("python3 - <<'END-OF-PROGRAM'\n" + textwrap.dedent(program) + '\nEND-OF-PROGRAM\n', **more)

    def status(self, key):
        """A line of the guest's status, as the kernel tells it on the host."""
        with open(f'/proc/{self.pid}/status') as f:
            for line in f:
                if line.startswith(key + ':'):
                    return line.split()[1:]
        raise KeyError(key)

    def alive(self):
        return os.path.exists(f'/proc/{self.pid}')

    def end(self):
        self.box.driver('end', self.mark)


class Box:
    """A base directory, the sockets' directory, and who the daemon is: root or an ordinary user."""

    def __init__(self, programs, path, uid=0, **always):
        self.programs = programs
        self.path = path
        self.uid = uid
        self.always = always
        self.base = f'{path}/base'
        self.sockets = f'{path}/sockets'
        self.sandboxes = []
        self.count = 0
        for directory in (self.base, self.sockets):
            os.mkdir(directory, 0o700)
            os.chown(directory, uid, uid)
        os.makedirs(f'{self.base}/alice', 0o700)
        os.chown(f'{self.base}/alice', uid, uid)

    def need_mapped_owners(self):
        """Root's own sandboxes need a file system that can show other owners."""
        if self.uid or 'tenant' in self.always:
            return
        try:
            self.driver('check', *self.words({'workspace': 'alice'}))
        except Refused as refusal:
            if refusal.args[0] == errno.EOPNOTSUPP:
                pytest.skip(refusal.args[1])
            raise

    def words(self, options, env=(), bind=(), secret=()):
        words = [f'guest={self.programs}/guest', f'base={self.base}', f'sockets={self.sockets}']
        words += [f'{k}={v}' for k, v in {**self.always, **options}.items()]
        for key, values in (('env', env), ('bind', bind), ('secret', secret)):
            words += [f'{key}={v}' for v in values]
        return words

    def workspace(self, name):
        """Made and given to the tenant as the daemon does."""
        path = f'{self.base}/alice/{name}'
        if not os.path.lexists(path):
            os.mkdir(path, 0o700)
            uid, gid = map(int, self.always.get('tenant', f'{self.uid}:{self.uid}').split(':'))
            os.chown(path, uid, gid)
        return path

    def popen(self, *words, before=(), **more):
        who = {} if self.uid == 0 or before else {'user': self.uid, 'group': self.uid, 'extra_groups': []}
        return subprocess.Popen([*before, f'{self.programs}/driver', *words], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **who, **more)

    def driver(self, *words, **more):
        process = self.popen(*words, **more)
        out, complaints = process.communicate(timeout=120)
        answer = dict(line.split('=', 1) for line in out.splitlines() if '=' in line)
        if 'error' in answer:
            code, _, sentence = answer['error'].partition(' ')
            raise Refused(int(code), sentence)
        assert process.returncode == 0 and not complaints, (process.returncode, out, complaints)
        return answer

    def next_name(self):
        self.count += 1
        return f's{self.count}'

    def start(self, popen=None, env=(), bind=(), secret=(), **options):
        name = self.next_name()
        options.setdefault('workspace', f'alice/{name}')
        if options['workspace'].startswith('alice/'):
            self.workspace(options['workspace'].split('/')[1])
        answer = self.driver('start', f'name={name}', *self.words(options, env, bind, secret), **(popen or {}))
        self.sandboxes.append(Sandbox(self, name, answer))
        return self.sandboxes[-1]

    def hold(self, **options):
        """A starter that stays, as a daemon would: (its process, the sandbox)."""
        name = self.next_name()
        self.workspace(name)
        starter = self.popen('hold', f'name={name}', *self.words({'workspace': f'alice/{name}', **options}))
        answer = {}
        for line in starter.stdout:
            key, _, value = line.strip().partition('=')
            answer[key] = value
            if key == 'good':
                break
        self.sandboxes.append(Sandbox(self, name, answer))
        return starter, self.sandboxes[-1]

    def check(self, env=(), bind=(), secret=(), popen=None, **options):
        self.workspace('check')
        self.driver('check', *self.words({'workspace': 'alice/check', **options}, env, bind, secret), **(popen or {}))

    def finish(self):
        for s in self.sandboxes:
            try:
                s.end()
            except Refused:
                pass
            wait_for(lambda s=s: ended(s.pid), what='the end of a sandbox')


def state_of(pid):
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rsplit(')', 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def ended(pid):
    return state_of(pid) in (None, 'Z')


def processes_with(marker):
    """Live processes on the host with `marker` in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/cmdline', 'rb') as f:
                if marker.encode() in f.read() and not ended(pid):
                    found.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def group_directory(pid, controller):
    """The directory of a process's v1 group, or its v2 group."""
    with open(f'/proc/{pid}/cgroup') as f:
        lines = [line.rstrip('\n').split(':', 2) for line in f]
    for _, controllers, path in lines:
        if controller in controllers.split(','):
            return f'/sys/fs/cgroup/{controller}{path}'
    path = next(path for number, _, path in lines if number == '0')
    mounts = [line.split()[1] for line in open('/proc/self/mounts') if line.split()[2] == 'cgroup2']
    return mounts[0] + path


def kill_quietly(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
