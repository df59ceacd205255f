# SPDX-License-Identifier: Apache-2.0
"""What the system tests are written with: a mounted wsmfs, its sessions, children that may hang,
and waiting for conditions instead of for time."""

import contextlib
import ctypes
import errno
import json
import os
import pickle
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback

import watchdog
from watchdog import processes_of

BUILD = os.environ.get('WSMFS_BUILD', '')
WSMFS = os.path.join(BUILD, 'fs/wsmfs')
TEST_BACKEND = os.path.join(BUILD, 'tests/backend/testbackend.so')
SOURCE = os.environ.get('WSMFS_TEST_SOURCE', 'local')
SANITIZER = os.environ.get('WSMFS_SANITIZER', 'none')
# The image of containers that have the programs of this machine, and what is bound there.
HOST_IMAGE, HOST_BIND = 'host:1', '/usr'
CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# How much slower the program may be than it is without a sanitizer.
SLOWNESS = {'none': 1, 'address': 3, 'thread': 10}.get(SANITIZER, 3)

# In the foreground everything it says has one of these forms; all else is a complaint.
GOOD_LINE = re.compile(r'wsmfs: (?:info|debug): ')
REPORT = re.compile(r'AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:')

# Two users that every Debian and Ubuntu has; neither is root.
ALICE_UID, ALICE_GID = 1, 1              # daemon
BOB_UID, BOB_GID = 65534, 65534          # nobody


class Hang(AssertionError):
    """What should have ended by now has not."""


def wait_for(condition, timeout=60, what=None):
    """Calls `condition` until it gives something true, and returns that."""
    end = time.monotonic() + timeout
    pause = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Hang(f'waited {timeout} s in vain for {what or condition}')
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


# ── children ────────────────────────────────────────────────────────────────────────────────

class Child:
    """A forked process that runs a function. It may hang in the mount without harm to the tests."""

    SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)

    def __init__(self, function, uid=None, gid=None, groups=()):
        self.read_end, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal to the child that comes early must not be taken as one to the tests.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, write_end, uid, gid, groups, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write_end)
        self.buffer = b''
        self.reaped = False
        self.answer = None

    def _run(self, function, write_end, uid, gid, groups, mask):
        code = 0
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number in self.SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(self.read_end)
            for fd in watchdog.not_for_children:  # else a child that hangs would keep the watchdog from its end
                os.close(fd)
            watchdog.not_for_children.clear()  # it may have children of its own
            if uid is not None:
                os.setgroups(list(groups))
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            answer = ('value', function())
        except BaseException as e:  # pylint: disable=broad-except
            answer = ('raise', e, traceback.format_exc())
        try:
            text = pickle.dumps(answer)
        except Exception:  # pylint: disable=broad-except
            text = pickle.dumps(('raise', AssertionError(repr(answer)), ''))
        try:
            with os.fdopen(write_end, 'wb') as f:
                f.write(text)
        except BaseException:  # pylint: disable=broad-except
            code = 1
        os._exit(code)

    def _read(self, timeout):
        end = time.monotonic() + timeout
        while self.answer is None:
            left = max(0, end - time.monotonic())
            if not select.select([self.read_end], [], [], left)[0]:
                return False
            piece = os.read(self.read_end, 1 << 16)
            self.buffer += piece
            if not piece:
                _, status = os.waitpid(self.pid, 0)
                self.reaped = True
                os.close(self.read_end)
                if self.buffer:
                    self.answer = pickle.loads(self.buffer)
                else:
                    code = os.waitstatus_to_exitcode(status)
                    self.answer = ('raise', ChildDied(code), '')
        return True

    def done(self):
        return self._read(0)

    def result(self, timeout=60):
        """What the function returned; raises what it raised, or Hang."""
        if not self._read(timeout):
            self.kill()
            raise Hang(f'a child did not end within {timeout} s')
        if self.answer[0] == 'raise':
            raise self.answer[1]
        return self.answer[1]

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        if self.reaped:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        # It may sit in the mount, so it is waited for in the background.
        threading.Thread(target=self._read, args=(60,), daemon=True).start()


class ChildDied(Exception):
    """A child ended without an answer; args[0] is its exit code, negative for a signal."""


def in_child(function, timeout=60, **who):
    return Child(function, **who).result(timeout)


def as_user(uid, gid, function, timeout=60, groups=()):
    return Child(function, uid=uid, gid=gid, groups=groups).result(timeout)


def as_alice(function, timeout=60):
    return as_user(ALICE_UID, ALICE_GID, function, timeout)


def as_bob(function, timeout=60):
    return as_user(BOB_UID, BOB_GID, function, timeout)


def run(*words, timeout=120, check=True, **more):
    """Runs a command and returns what it printed."""
    words = [str(w) for w in words]
    done = subprocess.run(words, timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', **more)
    if check and done.returncode != 0:
        raise AssertionError(f'{words} ended with {done.returncode}:\n{done.stdout[-4000:]}')
    return done.stdout


def sh(line, timeout=120, check=True, **more):
    return run('bash', '-c', line, timeout=timeout, check=check, **more)


# ── files ───────────────────────────────────────────────────────────────────────────────────

def errno_of(function, *words, **more):
    """The name of the errno that a call fails with; None when it succeeds."""
    try:
        function(*words, **more)
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)
    return None


def open_errno(*words, **more):
    """errno_of(os.open, …) that leaves no descriptor behind when it succeeds."""
    return errno_of(lambda: os.close(os.open(*words, **more)))


def write(path, data):
    with open(path, 'wb') as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def append(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, data if isinstance(data, bytes) else data.encode())
    finally:
        os.close(fd)


def read(path):
    with open(path, 'rb') as f:
        return f.read().decode(errors='surrogateescape')


def put(path, data):
    """One write(2) to a file that exists: how a control file is written."""
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, data if isinstance(data, bytes) else data.encode())
    finally:
        os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
AT_FDCWD = -100


def _call(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(old, new, flags):
    return _call(_libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    return _call(_libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def tree(path, skip=('.wsm',)):
    """What is below a directory: name → what it is. For comparing two of them."""
    found = {}
    for where, dirs, files in os.walk(path):
        if where == path:
            dirs[:] = [d for d in dirs if d not in skip]
        for name in dirs + files:
            full = os.path.join(where, name)
            st = os.lstat(full)
            key = os.path.relpath(full, path)
            if stat.S_ISREG(st.st_mode):
                found[key] = ('file', st.st_mode, st.st_nlink, read(full))
            elif stat.S_ISLNK(st.st_mode):
                found[key] = ('link', os.readlink(full))
            else:
                found[key] = ('dir' if stat.S_ISDIR(st.st_mode) else 'node', st.st_mode)
    return found


def mountinfo(point):
    return [m for m in watchdog.mounts_below(point) if m[0] == point]


# ── processes ───────────────────────────────────────────────────────────────────────────────

def descriptors_of(pid):
    """What the descriptors of a process lead to. One that goes while this looks is left out, and one that
    has ended has none: so this may be asked again and again until something is there."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for fd in os.listdir(f'/proc/{pid}/fd'):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.append(os.readlink(f'/proc/{pid}/fd/{fd}'))
    return found


def thread_files(pid, name):
    """A file of /proc of each thread of a process, but for those that end while this looks."""
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(read(f'/proc/{pid}/task/{task}/{name}'))
    return found


# ── sessions ────────────────────────────────────────────────────────────────────────────────

class Session:
    """One session, and its control directory by the manager's path (which nothing can block)."""

    def __init__(self, daemon, names):
        self.daemon = daemon
        self.names = names
        self.path = f'{daemon.mnt}/{names}'
        self.inner = f'{self.path}/.wsm'
        self.control = f'{daemon.mnt}/.wsm/sessions/{names}'

    def __truediv__(self, name):
        return f'{self.path}/{name}'

    def id(self):
        return read(f'{self.control}/id').rstrip('\n')

    def state(self):
        return read(f'{self.control}/state').rstrip('\n')

    def error(self):
        return read(f'{self.control}/error').rstrip('\n')

    def status(self):
        return json.loads(read(f'{self.control}/status'))

    def bind(self, new_id):
        put(f'{self.control}/id', f'{new_id}\n')

    def ctl(self, *verbs):
        put(f'{self.control}/ctl', ''.join(v + '\n' for v in verbs))

    def use(self):
        """An access that makes it known and ready; returns the session."""
        os.listdir(self.path)
        return self

    def wait_state(self, *states, timeout=60):
        wait_for(lambda: self.state() in states, timeout, f'{self.names} to be {states}')


class Events:
    """Follows the manager's events."""

    def __init__(self, daemon, path=None):
        self.fd = os.open(path or f'{daemon.mnt}/.wsm/events', os.O_RDONLY | os.O_NONBLOCK)
        self.lines = []
        self.rest = b''

    def more(self, timeout):
        """Takes in what is there, waiting at most `timeout` s for the first of it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if not poll.poll(timeout * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            self.rest += os.read(self.fd, 65536)
        *whole, self.rest = self.rest.split(b'\n')
        self.lines += [json.loads(line) for line in whole]
        return True

    def wait(self, wanted, timeout=60, seen=0):
        """The first event from number `seen` on for which `wanted` is true."""
        end = time.monotonic() + timeout
        while True:
            while seen < len(self.lines):
                if wanted(self.lines[seen]):
                    return self.lines[seen]
                seen += 1
            if time.monotonic() > end:
                raise Hang(f'no such event in {timeout} s; there were {self.lines[-20:]}')
            self.more(min(1, timeout))

    def wait_named(self, name, timeout=60, **fields):
        return self.wait(lambda e: e['event'] == name and
                         all(e.get(k) == v for k, v in fields.items()), timeout)

    def close(self):
        os.close(self.fd)


# ── the daemon ──────────────────────────────────────────────────────────────────────────────

def sandboxes_of(path):
    """Processes in mount namespaces of their own that see files from below `path`: what a daemon's
    sandboxes are, and may outlive it."""
    found, own, part = [], os.readlink('/proc/self/ns/mnt'), path.removeprefix('/tmp') + '/'
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            if os.readlink(f'/proc/{pid}/ns/mnt') != own and \
                    any(part in line.split()[3] + '/' for line in read(f'/proc/{pid}/mountinfo').splitlines()):
                found.append(int(pid))
    return found


class Background:
    """What Popen is to a child, for a daemon that is nobody's child (its exit code is not known)."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None

    def poll(self):
        try:
            alive = read(f'/proc/{self.pid}/stat').rsplit(')', 1)[1].split()[0] != 'Z'
        except (FileNotFoundError, ProcessLookupError):
            alive = False
        self.returncode = None if alive else 0
        return self.returncode

    def wait(self, timeout):
        try:
            wait_for(lambda: self.poll() is not None, timeout)
        except Hang as e:
            raise subprocess.TimeoutExpired('wsmfs', timeout) from e
        return self.returncode


class MountFailed(AssertionError):
    """args: exit code, what was printed."""


def environment():
    env = dict(os.environ)
    for name, more in {'ASAN_OPTIONS': 'exitcode=99:detect_leaks=1', 'UBSAN_OPTIONS': 'print_stacktrace=1',
                       'TSAN_OPTIONS': 'exitcode=66:halt_on_error=0'}.items():
        env[name] = ':'.join(filter(None, [more, env.get(name)]))
    env.pop('NOTIFY_SOCKET', None)
    return env


def option_words(opts):
    words = []
    for key, value in opts.items():
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}=' + str(value).replace('\\', '\\\\').replace(',', '\\,'))
    return ','.join(words)


def for_containers(config, host):
    """The same for containers of an engine, which are to have this machine's programs."""
    if '[backend docker]' in config:
        return config
    if '[sandbox]' not in config:
        config += '\n[sandbox]\n'
    bound = re.search(r'^bind *= *', config, re.M)
    if bound:
        config = f'{config[:bound.end()]}{HOST_BIND} {config[bound.end():]}'
    else:
        config = config.replace('[sandbox]\n', f'[sandbox]\nbind = {HOST_BIND}\n', 1)
    return f'{config}\n[backend docker]\nhost = {host}\n'


class Daemon:
    """One wsmfs on one mount point; restart() runs it again on the same directories."""

    engine = None  # of a run in which workspaces are containers

    def __init__(self, top, source=None, config='', **opts):
        self.top = top
        self.mnt = f'{top}/mnt'
        self.basedir = f'{top}/base'
        self.log_path = f'{top}/stderr'
        os.makedirs(self.mnt, exist_ok=True)
        self.source = source or f'local:{self.basedir}'
        self.opts = {'state_dir': f'{top}/state', **opts}
        if self.engine and not source:
            self.source = f'docker:{HOST_IMAGE}'
            self.opts.setdefault('basedir', self.basedir)
        self.set_config(config)
        self.proc = None
        self.pid = None
        self.minor = None
        self.allowed = []
        self.children = []
        self.checked = 0
        self.problems = []
        self.uid = self.gid = None
        self.program = WSMFS
        self.extra_env = {}

    # starting

    def set_config(self, text):
        self.config = text
        if self.engine and self.source.startswith('docker:'):
            text = for_containers(text, self.engine.host)
        if text:
            write(f'{self.top}/config.ini', text)
            self.opts['config'] = f'{self.top}/config.ini'

    def command(self, *more):
        return [self.program, *more, self.source, self.mnt, '-o', option_words(self.opts)]

    def start(self, wait=True, **opts):
        self.opts.update(opts)
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        who = {}
        if self.uid is not None:
            who = {'user': self.uid, 'group': self.gid, 'extra_groups': []}
        self.proc = subprocess.Popen(self.command('-f'), stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log, start_new_session=True,
                                     env=environment() | self.extra_env,
                                     cwd='/', **who)
        os.close(log)
        self.pid = self.proc.pid
        if wait:
            self.wait_mounted()
        return self

    def wait_mounted(self, timeout=60):
        def there():
            if self.proc is not None and self.proc.poll() is not None:
                raise MountFailed(self.proc.returncode, self.log())
            there_now = mountinfo(self.mnt)
            if not there_now:
                return False
            self.minor = there_now[-1][1]
            try:
                if self.uid is None:
                    self.check_answers()
                else:
                    as_user(self.uid, self.gid, self.check_answers)
            except OSError as e:
                # What a killed predecessor left is replaced in a moment.
                if e.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT):
                    raise
                return False
            return True
        wait_for(there, timeout, 'the mount')

    def start_background(self, **opts):
        """As a user starts it: returns when the mount answers, its log goes elsewhere."""
        self.opts.update(opts)
        done = subprocess.run(self.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                              env=environment(), check=False)
        if done.returncode != 0:
            raise MountFailed(done.returncode, done.stdout + done.stderr)
        self.check_answers()
        self.pid = next(pid for pid in processes_of(self.top + '/'))
        self.proc = Background(self.pid)
        return self

    def check_answers(self):
        st = os.stat(self.mnt)
        assert stat.S_ISDIR(st.st_mode)
        read(f'{self.mnt}/.wsm/status')

    def restart(self, **opts):
        self.stop()
        return self.start(**opts)

    # use

    def session(self, names='alice/coder/s1'):
        return Session(self, names)

    def events(self):
        return Events(self)

    def status(self):
        return json.loads(read(f'{self.mnt}/.wsm/status'))

    def ctl(self, verb):
        put(f'{self.mnt}/.wsm/ctl', verb + '\n')

    def metrics(self):
        """name{labels} → number"""
        found = {}
        for line in read(f'{self.mnt}/.wsm/metrics').splitlines():
            if line and not line.startswith('#'):
                name, value = line.rsplit(' ', 1)
                found[name] = float(value)
        return found

    def child(self, function, **who):
        """A Child that is ended with the daemon at the latest."""
        self.children.append(Child(function, **who))
        return self.children[-1]

    def popen(self, *words, **more):
        """A process that is ended with the daemon at the latest."""
        self.children.append(subprocess.Popen([str(w) for w in words], **more))
        return self.children[-1]

    def memory_bytes(self, field='VmRSS'):
        for line in read(f'/proc/{self.pid}/status').splitlines():
            if line.startswith(field + ':'):
                return int(line.split()[1]) * 1024
        raise KeyError(field)

    def descriptors(self):
        """How many it has, but for the pipes, of which each thread that reads requests keeps one."""
        return sum(not target.startswith('pipe:') for target in descriptors_of(self.pid))

    # ending

    def kill(self):
        """As a crash would: no farewell."""
        os.kill(self.pid, signal.SIGKILL)
        self.proc.wait(60)

    def stop(self, expect_exit=0, by=None):
        """Unmounts (or sends the signal `by`), waits for the end and checks how it went."""
        self.end_children()
        problems = []
        if self.proc is not None and self.proc.poll() is None:
            lazily = self._ask_to_end(by, problems)
            self._wait_end(problems, lazily)
        code = None if self.proc is None else self.proc.poll()
        problems += self._leave_no_mount()
        if code is not None and code != expect_exit:
            problems.append(f'wsmfs exited with {code}')
        self.proc = None
        problems += self.bad_lines()
        self.problems += problems
        if self.problems:
            text = '\n'.join(self.problems) + '\n--- its log ends:\n' + self.log()[-6000:]
            self.problems = []
            raise AssertionError(text)

    def _ask_to_end(self, by, problems):
        """True when it could only be unmounted lazily."""
        if by is not None or not mountinfo(self.mnt):
            os.kill(self.pid, by or signal.SIGTERM)
            return False
        how = [['umount', self.mnt], ['umount', '-l', self.mnt]]
        if os.geteuid() != 0:
            how = [['fusermount3', '-u', self.mnt], ['fusermount3', '-uz', self.mnt]]
        for words in how:
            try:
                said = self._unmount(words)
            except subprocess.TimeoutExpired:
                said = 'it hung'
            if said is None:
                return words is how[1]
            problems.append(f'{words}: {said}')
        os.kill(self.pid, signal.SIGTERM)
        return False

    @staticmethod
    def _unmount(words):
        """What it said, or None. What was just killed may keep the mount busy for a moment."""
        end = time.monotonic() + 5
        while True:
            done = subprocess.run(words, timeout=60, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return None
            if time.monotonic() > end:
                return done.stderr.strip()
            time.sleep(0.1)

    def _wait_end(self, problems, lazily):
        try:
            self.proc.wait(10 if lazily else 90)
            return
        except subprocess.TimeoutExpired:
            if lazily:  # something is still open
                os.kill(self.pid, signal.SIGTERM)
        try:
            self.proc.wait(90)
            return
        except subprocess.TimeoutExpired:
            problems.append('wsmfs did not end within 90 s; its threads: ' + self._where())
        watchdog.abort(control_directory(), self.minor)  # it may be detached, and so be listed nowhere
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self.proc.wait(60)
            problems.append('wsmfs had to be killed')

    def _where(self):
        with contextlib.suppress(OSError):
            return '; '.join(f'{name.strip()} {where}' for name, where in zip(
                thread_files(self.pid, 'comm'), thread_files(self.pid, 'wchan')))
        return ''

    def _leave_no_mount(self):
        left = mountinfo(self.mnt)
        for _ in range(5):
            if not mountinfo(self.mnt):
                break
            subprocess.run(['umount', '-l', self.mnt], check=False, capture_output=True)
        return [f'the mount {self.mnt} was left'] if left else []

    def end_children(self):
        for child in self.children:
            if isinstance(child, Child):
                child.kill()
            elif child.poll() is None:
                child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(10)
        self.children = []

    # what it says

    def log(self):
        with contextlib.suppress(FileNotFoundError):
            return read(self.log_path)
        return ''

    def expect(self, pattern):
        """Allows warnings that match in this test."""
        self.allowed.append(re.compile(pattern))

    def bad_lines(self):
        """Warnings, errors and sanitizer reports since the last call, but for expected ones."""
        text = self.log()
        new, self.checked = text[self.checked:], len(text)
        bad = [line for line in new.splitlines()
               if line and not GOOD_LINE.match(line) and not any(a.search(line) for a in self.allowed)]
        if REPORT.search(new):
            at = REPORT.search(new).start()
            return ['a sanitizer report:\n' + new[max(0, at - 2000):at + 10000]]
        return ['it said: ' + line for line in bad]


def control(daemon, who, *words):
    """Tells the test backend what to do for an id or for `default`; nothing: as usual."""
    path = f'{daemon.top}/control/{who}'
    write(path + '.new', '\n'.join(words) + '\n')
    os.rename(path + '.new', path)


def mount_fails(daemon, timeout=60):
    """Starts a daemon that must refuse; returns (exit code, what it said)."""
    try:
        daemon.start()
    except MountFailed as e:
        daemon.proc = None
        text = e.args[1]
        daemon.checked = len(text)
        assert not REPORT.search(text), text
        assert not mountinfo(daemon.mnt)
        return e.args[0], text
    raise AssertionError('it mounted')


_control = {}


def control_directory():
    """Where fusectl is mounted; needed to free what hangs."""
    return _control['path']


@contextlib.contextmanager
def fusectl(top):
    """Mounts the kernel's control file system of FUSE where it is not mounted already."""
    standard = '/sys/fs/fuse/connections'
    if os.path.ismount(standard) or os.geteuid() != 0:
        _control['path'] = standard
        yield standard
        return
    own = f'{top}/fusectl'
    os.mkdir(own)
    run('mount', '-t', 'fusectl', 'fusectl', own)
    _control['path'] = own
    try:
        yield own
    finally:
        run('umount', '-l', own)  # somebody may be looking at it
        os.rmdir(own)


def remove_tree(path):
    """Removes a directory in which nothing may be mounted any more."""
    assert not watchdog.mounts_below(path)
    shutil.rmtree(path)
