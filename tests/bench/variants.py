# SPDX-License-Identifier: Apache-2.0
"""The directories that are compared, and the processes behind them: whatever is started here ends
with the program, also when that fails or is killed."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x20000
_libc = ctypes.CDLL(None, use_errno=True)
GOOD_LINE = re.compile(r'wsmfs: (?:info|debug): ')


class Trouble(Exception):
    """A sentence for the user; the measurement ends."""


def die_with_parent(number=signal.SIGTERM, cpu=None):
    """For preexec_fn."""
    def before_exec():
        _libc.prctl(PR_SET_PDEATHSIG, int(number))
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
    return before_exec


def end_process(proc, timeout_s=20):
    for number in (signal.SIGTERM, signal.SIGKILL):
        if proc.poll() is not None:
            return
        proc.send_signal(number)
        try:
            proc.wait(timeout_s)
        except subprocess.TimeoutExpired:
            continue


class Native:
    """The plain directory."""

    def __init__(self, name, top):
        self.name = name
        self.top = f'{top}/{name}'
        self.dir = f'{self.top}/files'
        os.makedirs(self.dir)

    def start(self):
        return self

    def stop(self):
        pass

    def cost(self):
        return None


class Mounted(Native):
    """A directory seen through a FUSE file system whose daemon runs in the foreground."""

    def __init__(self, name, top, cpu=None):
        super().__init__(name, top)
        self.mnt = f'{self.top}/mnt'
        self.log_path = f'{self.top}/log'
        self.cpu = cpu
        self.proc = None
        os.mkdir(self.mnt)

    def words(self):
        raise NotImplementedError

    def start(self):
        with open(self.log_path, 'ab') as log:
            self.proc = subprocess.Popen(self.words(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd='/',
                                         preexec_fn=die_with_parent(cpu=self.cpu))
        self._wait_mounted()
        self.dir = self.place()
        return self

    def place(self):
        return self.mnt

    def _wait_mounted(self, timeout_s=60):
        end = time.monotonic() + timeout_s
        while not os.path.ismount(self.mnt):
            if self.proc.poll() is not None or time.monotonic() > end:
                raise Trouble(f'{self.name} did not mount: {self.log().strip()[-400:]}')
            time.sleep(0.02)

    def cost(self):
        """What the daemon has used: (nanoseconds of a CPU, switches of threads)."""
        ns = switches = 0
        for task in os.listdir(f'/proc/{self.proc.pid}/task'):
            where = f'/proc/{self.proc.pid}/task/{task}'
            with open(f'{where}/schedstat', encoding='ascii') as f:
                ns += int(f.read().split()[0])
            with open(f'{where}/status', encoding='ascii', errors='replace') as f:
                switches += sum(int(n) for n in re.findall(r'ctxt_switches:\s+(\d+)', f.read()))
        return ns, switches

    def log(self):
        with open(self.log_path, errors='replace') as f:
            return f.read()

    def stop(self):
        if self.proc is None:
            return
        for words in (['umount', self.mnt], ['umount', self.mnt], ['umount', '-l', self.mnt]):
            if not os.path.ismount(self.mnt):
                break
            if subprocess.run(words, check=False, capture_output=True, timeout=60).returncode != 0:
                time.sleep(0.3)  # the last RELEASE may be under way
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            end_process(self.proc)
        if os.path.ismount(self.mnt):
            subprocess.run(['umount', '-l', self.mnt], check=False)
        self.proc = None


class Wsmfs(Mounted):
    """A session of a mount of its own; session() gives more of them."""

    def __init__(self, name, top, program, cpu=None, options=()):
        super().__init__(name, top, cpu)
        self.program = program
        self.options = list(options)
        os.chmod(self.dir, 0o700)
        self.basedir = self.dir

    def words(self):
        options = ','.join([f'state_dir={self.top}/state', *self.options])
        return [self.program, '-f', f'local:{self.basedir}', self.mnt, '-o', options]

    def place(self):
        return self.session('one', 's1')

    def session(self, agent, session):
        path = f'{self.mnt}/bench/{agent}/{session}'
        os.listdir(path)
        return path

    def requests(self):
        """Requests by operation since the mount began."""
        with open(f'{self.mnt}/.wsm/metrics', encoding='ascii') as f:
            found = re.findall(r'^wsmfs_requests_total\{op="(\w+)"\} (\d+)$', f.read(), re.M)
        return {op: int(n) for op, n in found}

    def status(self):
        with open(f'{self.mnt}/.wsm/status', encoding='utf-8') as f:
            return f.read()

    def stop(self):
        was = self.proc
        super().stop()
        if was is None:
            return
        bad = [line for line in self.log().splitlines() if not GOOD_LINE.match(line)]
        if bad or was.returncode:
            raise Trouble(f'{self.name} ended with {was.returncode} and said: ' + ' | '.join(bad[-5:]))


class Bindfs(Mounted):
    def __init__(self, name, top, cpu=None, options=()):
        super().__init__(name, top, cpu)
        self.options = list(options)
        self.below = self.dir

    def words(self):
        return ['bindfs', '-f', *self.options, self.below, self.mnt]


class Mergerfs(Bindfs):
    def words(self):
        return ['mergerfs', '-f', *self.options, self.below, self.mnt]


def version_of(program):
    """As the package's manager knows it; '' where it does not."""
    done = subprocess.run(['dpkg-query', '-W', '-f', '${Version}', program], capture_output=True, text=True,
                          check=False) if shutil.which('dpkg-query') else None
    return done.stdout.strip() if done and done.returncode == 0 else ''


def install(programs, may_install):
    """Those of `programs` that are there in the end."""
    missing = [p for p in programs if not shutil.which(p)]
    if missing and may_install and shutil.which('apt-get'):
        env = os.environ | {'DEBIAN_FRONTEND': 'noninteractive'}
        how = ['apt-get', '-qq', '-o', 'DPkg::Lock::Timeout=120']
        for words in ([*how, 'update'], [*how, 'install', '-y', '--no-install-recommends', *missing]):
            subprocess.run(words, env=env, check=False, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    for p in missing:
        if not shutil.which(p):
            print(f'{p} is not on this machine and is left out', file=sys.stderr)
    return [p for p in programs if shutil.which(p)]


def own_mounts():
    """What is mounted from now on ends with the last of our processes, however that comes about."""
    if _libc.unshare(CLONE_NEWNS) == 0:
        subprocess.run(['mount', '--make-rprivate', '/'], check=False)


class FreshDisk:
    """A new ext4 in a file. A file system in use is a poor place to compare on: ext4 without a journal,
    say, looks for a free inode the longer the more were deleted in the last minutes, by whomever."""

    def __init__(self, top, size_gib):
        self.path = f'{top}/disk'
        self.image = f'{top}/disk.img'
        os.mkdir(self.path)
        with open(self.image, 'wb') as f:
            f.truncate(size_gib << 30)
        how = 'lazy_itable_init=0,lazy_journal_init=0,nodiscard'
        for words in (['mkfs.ext4', '-q', '-F', '-E', how, self.image], ['mount', '-o', 'loop', self.image, self.path]):
            done = subprocess.run(words, capture_output=True, text=True, check=False) if shutil.which(words[0]) else None
            if done is None or done.returncode != 0:
                why = done.stderr.strip() if done else 'it is not on this machine'
                raise Trouble(f'{words[0]} gave no fresh disk ({why}): --image-gib=0 measures in the directory itself')
        os.chmod(self.path, 0o700)

    def stop(self):
        subprocess.run(['umount', self.path], check=False)
        if os.path.ismount(self.path):
            subprocess.run(['umount', '-l', self.path], check=False)


class BusyLoops:
    """Processes that take all the time they get."""

    def __init__(self, n):
        self.procs = [subprocess.Popen([sys.executable, '-c', 'while True: pass'], stdin=subprocess.DEVNULL,
                                       preexec_fn=die_with_parent(signal.SIGKILL)) for _ in range(n)]

    def stop(self):
        for p in self.procs:
            end_process(p)
